#include "data/inspect.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/append.h"
#include "base/error.h"
#include "base/units.h"
#include "base/utf8.h"
#include "data/token_file.h"
#include "data/token_meta.h"
#include "data/token_paths.h"
#include "data/token_set.h"

namespace gptrain::inline data {
namespace {

// Limit of an id: counts have an entry for each id, and a larger id is in no vocabulary, so the file is damaged.
constexpr int64_t max_vocab_size = int64_t{1} << 24;
constexpr size_t num_frequent_tokens = 10;
constexpr int64_t bar_width = 40;

void count_tokens(const TokenFile& file, std::vector<int64_t>& counts) {
  std::vector<int32_t> chunk(chunk_tokens);
  for (int64_t first = 0; first < file.num_tokens(); first += chunk_tokens) {
    const int64_t count = std::min(chunk_tokens, file.num_tokens() - first);
    file.read({first, count}, max_vocab_size, chunk.data());
    for (int64_t i = 0; i < count; ++i) {
      const auto id = static_cast<size_t>(chunk[i]);
      if (id >= counts.size()) counts.resize(id + 1);
      ++counts[id];
    }
  }
}

// Returns log N - sum c log c / N over the counts c, which add up to N.
double entropy(const std::vector<int64_t>& counts) {
  double total = 0;
  double sum = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const auto c = static_cast<double>(count);
    total += c;
    sum += c * std::log(c);
  }
  return std::max(0.0, std::log(total) - sum / total);
}

// Returns the length in bytes of the printable UTF-8 character at the start of `text`; 0 if there is none. Control
// characters are excluded, as they could change the terminal; newline and tab are allowed.
size_t printable_length(std::string_view text) {
  const auto [code, length] = decode_utf8(text);
  const bool is_control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  return code == num_code_points || (is_control && code != '\n' && code != '\t') ? 0 : length;
}

std::string readable_text(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = printable_length(text);
    if (length > 0) {
      result += text.substr(0, length);
    } else {
      append(result, "\\x{:02x}", static_cast<uint8_t>(text[0]));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

template <typename Count>
int64_t sum_of(const std::vector<TokenFile>& files, Count count) {
  int64_t sum = 0;
  for (const TokenFile& file : files) sum += count(file);
  return sum;
}

int64_t num_documents_of(const std::vector<TokenFile>& files) {
  return sum_of(files, [](const TokenFile& file) { return file.num_documents(); });
}

std::string print_document(const std::vector<TokenFile>& files, const std::string& path, int64_t document,
                           const Tokenizer* tokenizer) {
  if (document >= num_documents_of(files)) {
    throw Error(ExitCode::data, "{} has no document {}; its documents are 0 to {}", path, document,
                num_documents_of(files) - 1);
  }
  auto at = files.begin();
  for (; document >= at->num_documents(); ++at) document -= at->num_documents();
  const TokenFile& file = *at;
  const TokenFile::Range range = file.document(document);
  std::vector<int32_t> tokens(range.count);
  file.read(range, max_vocab_size, tokens.data());
  const bool is_bytes = !tokens.empty() && tokens.back() == end_of_document &&
                        std::all_of(tokens.begin(), tokens.end() - 1, [](int32_t id) { return id < end_of_document; });
  std::string text;
  if (tokenizer != nullptr) return readable_text(tokenizer->decode(tokens)) + '\n';
  if (!is_bytes) {
    for (const int32_t token : tokens) append(text, "{}\n", token);
    return text;
  }
  for (size_t i = 0; i + 1 < tokens.size(); ++i) text += static_cast<char>(tokens[i]);
  return readable_text(text) + '\n';
}

std::string length_histogram(const std::vector<TokenFile>& files) {
  // Bucket b holds lengths of b bits: 0, 1, 2-3, 4-7, ...
  std::array<int64_t, 65> buckets{};
  for (const TokenFile& file : files) {
    for (int64_t i = 0; i < file.num_documents(); ++i)
      ++buckets[std::bit_width(static_cast<uint64_t>(file.document(i).count))];
  }
  const int64_t highest = *std::max_element(buckets.begin(), buckets.end());
  std::string text = fmt::format("\n{:>27}  {:>15}\n", "document length, tokens", "documents");
  for (size_t bits = 0; bits < buckets.size(); ++bits) {
    if (buckets[bits] == 0) continue;
    const int64_t shortest = bits == 0 ? 0 : int64_t{1} << (bits - 1);
    const int64_t longest = bits == 0 ? 0 : shortest + (shortest - 1);
    const std::string bar(buckets[bits] * bar_width / highest, '#');
    text += fmt::format("{:>12} - {:>12}  {:>15}  {}\n", format_grouped(shortest), format_grouped(longest),
                        format_grouped(buckets[bits]), bar);
  }
  return text;
}

// Returns a token's text in quotes; empty if the tokenizer is unknown.
std::string piece_of(const Tokenizer* tokenizer, size_t id) {
  if (tokenizer == nullptr || !tokenizer->has(static_cast<int64_t>(id))) return "";
  const std::string text = readable_text(tokenizer->text_of(static_cast<int32_t>(id)));
  fmt::memory_buffer quoted;
  for (const char c : text) {
    const std::string_view escaped = c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string_view(&c, 1);
    quoted.append(escaped);
  }
  return fmt::format("  \"{}\"", fmt::to_string(quoted));
}

std::string token_table(const std::vector<size_t>& ids, const std::vector<int64_t>& counts, int64_t num_tokens,
                        const Tokenizer* tokenizer) {
  std::string text = fmt::format("{:>10}  {:>15}  {:>7}\n", "token", "count", "share");
  for (const size_t id : ids) {
    text +=
        fmt::format("{:>10}  {:>15}  {:>6.2f}%{}\n", id, format_grouped(counts[id]),
                    100.0 * static_cast<double>(counts[id]) / static_cast<double>(num_tokens), piece_of(tokenizer, id));
  }
  return text;
}

std::string token_tables(const std::vector<int64_t>& counts, int64_t num_tokens, const Tokenizer* tokenizer) {
  std::vector<size_t> ids;
  for (size_t id = 0; id < counts.size(); ++id) {
    if (counts[id] > 0) ids.push_back(id);
  }
  const size_t seen = ids.size();
  const size_t shown = std::min(ids.size(), num_frequent_tokens);
  const auto last = ids.begin() + static_cast<std::ptrdiff_t>(shown);
  std::partial_sort(ids.begin(), last, ids.end(),
                    [&](size_t a, size_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  std::string text = fmt::format("\n{}", token_table({ids.begin(), last}, counts, num_tokens, tokenizer));
  if (seen > shown) {
    // The rarest of the others, most frequent first.
    const size_t rare = std::min(seen - shown, num_frequent_tokens);
    std::partial_sort(last, last + static_cast<std::ptrdiff_t>(rare), ids.end(),
                      [&](size_t a, size_t b) { return counts[a] != counts[b] ? counts[a] < counts[b] : a < b; });
    std::vector<size_t> rarest(last, last + static_cast<std::ptrdiff_t>(rare));
    std::reverse(rarest.begin(), rarest.end());
    text += "\nrarest\n" + token_table(rarest, counts, num_tokens, tokenizer);
  }
  if (tokenizer == nullptr) return text;
  return text + fmt::format("{} of the tokenizer's {} tokens never occur\n",
                            format_grouped(tokenizer->vocab_size() - static_cast<int64_t>(seen)),
                            format_grouped(tokenizer->vocab_size()));
}

constexpr std::array<std::string_view, 6> byte_classes = {"letters",     "digits",   "white space",
                                                          "other ASCII", "controls", "beyond ASCII"};

size_t class_of(uint8_t byte) {
  const auto within = [&](char first, char last) {
    return byte >= static_cast<uint8_t>(first) && byte <= static_cast<uint8_t>(last);
  };
  if (byte >= 0x80) return 5;
  if (within('a', 'z') || within('A', 'Z')) return 0;
  if (within('0', '9')) return 1;
  if (byte == ' ' || within('\t', '\r')) return 2;
  return byte < 0x20 || byte == 0x7F ? 4 : 3;
}

// Returns the bytes per token, and the share of each class of bytes.
std::string byte_table(const std::vector<int64_t>& counts, int64_t num_tokens, const Tokenizer& tokenizer) {
  std::array<int64_t, byte_classes.size()> bytes{};
  int64_t total = 0;
  const std::vector<int32_t> sizes = tokenizer.text_bytes();
  for (size_t id = 0; id < std::min(counts.size(), sizes.size()); ++id) {
    if (counts[id] == 0 || sizes[id] == 0) continue;
    for (const char byte : tokenizer.text_of(static_cast<int32_t>(id)))
      bytes[class_of(static_cast<uint8_t>(byte))] += counts[id];
    total += counts[id] * sizes[id];
  }
  std::string text = fmt::format("\n{} bytes of text, {:.3f} a token\n", format_grouped(total),
                                 static_cast<double>(total) / static_cast<double>(num_tokens));
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    text += fmt::format("{:>27}  {:>15}  {:>6.2f}%\n", byte_classes[i], format_grouped(bytes[i]),
                        100.0 * static_cast<double>(bytes[i]) / static_cast<double>(total));
  }
  return text;
}

// Returns the named tokenizer, else the one in the files' .meta.json; null if there is neither.
std::shared_ptr<const Tokenizer> tokenizer_for(const std::vector<std::filesystem::path>& names,
                                               const std::vector<TokenFile>& files,
                                               std::shared_ptr<const Tokenizer> named) {
  std::optional<TokenizerRecord> known;
  std::filesystem::path source;
  for (size_t i = 0; i < files.size(); ++i) {
    std::optional<TokenMeta> meta =
        files[i].format() == TokenFormat::megatron ? read_token_meta(names[i]) : std::nullopt;
    if (!meta || !meta->tokenizer) continue;
    if (known && known->sha256 != meta->tokenizer->sha256) {
      throw Error(ExitCode::usage, "{} and {} were packed with different tokenizers: inspect them one by one",
                  source.native(), names[i].native());
    }
    if (known && !known->text.empty()) continue;
    known = std::move(meta->tokenizer);
    source = names[i];
  }
  if (!known) return named;
  if (!named) return known->text.empty() ? nullptr : tokenizer_of(*known, token_file_path(source, ".meta.json"));
  if (make_tokenizer_record(*named, std::nullopt).sha256 != known->sha256)
    throw Error(ExitCode::usage,
                "--tokenizer: {} was packed with another tokenizer: name that one, or leave --tokenizer out",
                source.native());
  return named;
}

std::string summary(const std::vector<TokenFile>& files, const std::string& path, int64_t largest_id) {
  std::set<std::string_view> types;
  for (const TokenFile& file : files) types.insert(stored_type(file));
  std::string names;
  for (const std::string_view type : types) names += fmt::format("{}{}", names.empty() ? "" : " and ", type);
  const int64_t tokens = sum_of(files, [](const TokenFile& file) { return file.num_tokens(); });
  const int64_t bytes =
      sum_of(files, [](const TokenFile& file) { return file.num_tokens() * dtype_bytes(file.dtype()); });
  const std::string in_files =
      files.size() > 1 ? fmt::format(" in {}", format_counted(std::ssize(files), "token file")) : "";
  std::string text = fmt::format("{}: {}, {} of dtype {} ({}){}, largest id {}\n", one_line(path),
                                 format_counted(num_documents_of(files), "document"), format_counted(tokens, "token"),
                                 names, format_bytes(static_cast<double>(bytes)), in_files, largest_id);
  const int64_t length = files.front().best_fit_length();
  if (length == 0) return text;
  const int64_t samples = sum_of(files, [](const TokenFile& file) { return file.num_samples(); });
  const auto positions = static_cast<double>(samples * length);
  return text + fmt::format("in {} of {} tokens, {:.2f}% of them padding\n", format_counted(samples, "sample"),
                            format_grouped(length), 100 * (1 - static_cast<double>(tokens - samples) / positions));
}

}  // namespace

std::string inspect(const std::string& path, int64_t sample, std::shared_ptr<const Tokenizer> named,
                    std::optional<DType> dtype) {
  const std::vector<std::filesystem::path> names = require_token_files(path);
  std::vector<TokenFile> files;
  for (const std::filesystem::path& name : names) files.emplace_back(name, true, dtype);
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_for(names, files, std::move(named));
  if (sample >= 0) return print_document(files, path, sample, tokenizer.get());
  std::vector<int64_t> counts;
  for (const TokenFile& file : files) count_tokens(file, counts);
  const int64_t num_tokens = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::string text = summary(files, path, std::ssize(counts) - 1);
  text +=
      fmt::format("unigram entropy {:.4f} nats: the loss of the best guess that sees no context\n", entropy(counts));
  text += length_histogram(files) + token_tables(counts, num_tokens, tokenizer.get());
  return tokenizer ? text + byte_table(counts, num_tokens, *tokenizer) : text;
}

std::string verify_tokens(const std::filesystem::path& prefix, int64_t vocab_size,
                          const std::function<void(int64_t, int64_t)>& progress, std::optional<DType> dtype) {
  const TokenFile file(prefix, true, dtype);
  // Refuses ids of four bytes that no vocabulary has, such as labels of -100, which stand for no token.
  if (vocab_size < any_vocabulary || file.dtype() != DType::u16) {
    std::vector<int32_t> ids(chunk_tokens);
    for (int64_t first = 0; first < file.num_tokens(); first += chunk_tokens)
      file.read({first, std::min(chunk_tokens, file.num_tokens() - first)}, std::min(vocab_size, max_vocab_size),
                ids.data());
  }
  const std::string what =
      fmt::format("{}: {}, {}: ", one_line(prefix.native()), format_counted(file.num_documents(), "document"),
                  format_counted(file.num_tokens(), "token"));
  if (file.num_checksums() == 0)
    return what + "the index is sound; there is no .meta.json with checksums of the tokens\n";
  for (int64_t block = 0; block < file.num_checksums(); ++block) {
    file.check_block(block);
    if (progress) progress(block + 1, file.num_checksums());
  }
  return what + "sound\n";
}

double unigram_entropy(const std::filesystem::path& prefix) {
  std::vector<int64_t> counts;
  count_tokens(TokenFile(prefix), counts);
  return entropy(counts);
}

}  // namespace gptrain::data
