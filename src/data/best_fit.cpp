#include "data/best_fit.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "data/token_file.h"
#include "data/token_meta.h"
#include "data/token_writer.h"

namespace gptrain::inline data {
namespace {

// Tokens to read before the mapped pages are dropped: documents are read from all over the file, which would keep it in
// memory.
constexpr int64_t tokens_until_forgotten = int64_t{1} << 25;

// Returns the documents in order; a document longer than `capacity` is cut into pieces.
std::vector<TokenFile::Range> pieces_of(const TokenFile& file, int64_t capacity, int64_t& cut_documents) {
  std::vector<TokenFile::Range> pieces;
  for (int64_t i = 0; i < file.num_documents(); ++i) {
    const TokenFile::Range document = file.document(i);
    cut_documents += document.count > capacity ? 1 : 0;
    for (int64_t done = 0; done < document.count; done += capacity)
      pieces.push_back({document.first + done, std::min(capacity, document.count - done)});
  }
  return pieces;
}

}  // namespace

std::vector<int64_t> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int64_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), 0);
  const auto length_of = [&](int64_t item) { return lengths[item]; };
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });
  std::map<int64_t, std::vector<int64_t>> bins_by_space;  // bins with room left, by their room
  std::vector<int64_t> bins(lengths.size());
  int64_t num_bins = 0;
  for (const int64_t item : by_length) {
    const int64_t length = length_of(item);
    const auto best = bins_by_space.lower_bound(length);
    int64_t space = capacity;
    int64_t bin = num_bins;
    if (best != bins_by_space.end()) {
      space = best->first;
      bin = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) bins_by_space.erase(best);
    } else {
      ++num_bins;
    }
    bins[item] = bin;
    if (space > length) bins_by_space[space - length].push_back(bin);
  }
  std::vector<int64_t> number(num_bins, -1);
  int64_t numbered = 0;
  for (int64_t& bin : bins) {
    int64_t& own = number[bin];
    if (own < 0) own = numbered++;
    bin = own;
  }
  return bins;
}

BestFitResult write_best_fit(const std::filesystem::path& in, const std::filesystem::path& out, int64_t length) {
  const TokenFile file(in);
  const int64_t capacity = length + 1;
  BestFitResult result;
  const std::vector<TokenFile::Range> pieces = pieces_of(file, capacity, result.cut_documents);
  std::vector<int64_t> lengths;
  lengths.reserve(pieces.size());
  for (const TokenFile::Range& piece : pieces) lengths.push_back(piece.count);
  const std::vector<int64_t> bins = best_fit_decreasing(lengths, capacity);
  std::vector<int64_t> by_bin(std::move(lengths));
  std::iota(by_bin.begin(), by_bin.end(), 0);
  const auto bin_of = [&](int64_t piece) { return bins[piece]; };
  std::stable_sort(by_bin.begin(), by_bin.end(), [&](int64_t a, int64_t b) { return bin_of(a) < bin_of(b); });

  TokenWriter writer(out, file.dtype());
  if (std::optional<TokenMeta> meta = read_token_meta(in); meta && meta->tokenizer)
    writer.set_tokenizer(std::move(*meta->tokenizer));
  writer.set_best_fit_length(length);
  std::vector<int32_t> ids(capacity);
  int64_t read = 0;
  for (size_t i = 0; i < by_bin.size(); ++i) {
    const TokenFile::Range& piece = pieces[by_bin[i]];
    file.read(piece, any_vocabulary, ids.data());
    writer.append(std::span(ids).first(piece.count));
    if (i + 1 < by_bin.size() && bin_of(by_bin[i]) == bin_of(by_bin[i + 1])) {
      writer.end_document_in_sample();
    } else {
      writer.end_document();
      ++result.samples;
    }
    read += piece.count;
    if (read < tokens_until_forgotten) continue;
    file.forget();
    read = 0;
  }
  writer.finish();
  return result;
}

}  // namespace gptrain::data
