// Whole documents in samples: the packing, the file, and reading it in a run.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "data/best_fit.h"
#include "data/convert.h"
#include "data/dataset.h"
#include "data/join.h"
#include "data/pack.h"
#include "data/token_file.h"
#include "support.h"

namespace gptrain {
namespace {

using test::contains;
using test::error_of;
using test::RawTokenFile;

using Document = std::vector<int32_t>;

constexpr int64_t vocab_size = 60000;

// Documents with unique tokens: document d is 100 d, 100 d + 1, ...
std::vector<std::vector<int64_t>> counting_documents(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int64_t>> documents;
  for (const int64_t length : lengths) {
    documents.emplace_back(static_cast<size_t>(length));
    std::iota(documents.back().begin(), documents.back().end(), 100 * static_cast<int64_t>(documents.size() - 1));
  }
  return documents;
}

Document tokens_of(const TokenFile& file, TokenFile::Range range) {
  Document tokens(static_cast<size_t>(range.count));
  file.read(range, vocab_size, tokens.data());
  return tokens;
}

// Returns the documents of each sample.
std::vector<std::vector<Document>> samples_of(const std::filesystem::path& prefix) {
  const TokenFile file(prefix);
  std::vector<std::vector<Document>> samples;
  int64_t document = 0;
  for (int64_t i = 0; i < file.num_samples(); ++i) {
    samples.emplace_back();
    const TokenFile::Range sample = file.sample(i);
    int64_t tokens = 0;
    for (; tokens < sample.count; ++document) {
      CHECK(file.document(document).first == sample.first + tokens);
      samples.back().push_back(tokens_of(file, file.document(document)));
      tokens += file.document(document).count;
    }
    CHECK(tokens == sample.count);
  }
  CHECK(document == file.num_documents());
  return samples;
}

TEST_CASE("Best fit takes the bin with the least room that is enough") {
  // By hand, longest first: 7 opens bin 0, 6 opens bin 1, 4 joins the 6, 3 joins the 7, both 2s and the 1 share bin 2.
  const std::vector<int64_t> lengths = {2, 4, 7, 3, 2, 6, 1};
  CHECK(best_fit_decreasing(lengths, 10) == std::vector<int64_t>{0, 1, 2, 2, 0, 1, 0});
  CHECK(best_fit_decreasing({}, 10).empty());
  CHECK(best_fit_decreasing(std::vector<int64_t>{10, 10}, 10) == std::vector<int64_t>{0, 1});
  CHECK(best_fit_decreasing(std::vector<int64_t>{1, 1, 1}, 1) == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("No bin of a best fit runs over, and few are left half empty") {
  std::mt19937_64 random(1);
  for (const int64_t capacity : {1, 2, 17, 1000}) {
    std::vector<int64_t> lengths(3000);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(capacity));
    const std::vector<int64_t> bins = best_fit_decreasing(lengths, capacity);
    std::map<int64_t, int64_t> filled;
    int64_t next = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      CHECK(bins[i] <= next);  // in the order of their first documents
      next = std::max(next, bins[i] + 1);
      filled[bins[i]] += lengths[i];
    }
    int64_t half_empty = 0;
    for (const auto& [bin, tokens] : filled) {
      CHECK(tokens <= capacity);
      half_empty += 2 * tokens <= capacity ? 1 : 0;
    }
    CHECK(half_empty <= 1);  // two such samples would have been merged
    // Best fit decreasing is proven to need at most 11/9 of the fewest bins plus one.
    const int64_t fewest = (std::reduce(lengths.begin(), lengths.end()) + capacity - 1) / capacity;
    CHECK(std::ssize(filled) <= fewest * 11 / 9 + 1);
  }
}

TEST_CASE("A document is cut only where it is longer than a sample") {
  const TemporaryFolder folder;
  std::mt19937_64 random(2);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 400; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % 45));
  const auto documents = counting_documents(lengths);
  for (const int code : {4, 8}) {
    RawTokenFile::of(documents, code).write(folder / "in");
    for (const int64_t length : {1, 7, 20, 44, 60}) {
      INFO("samples of " << length);
      const BestFitResult result = write_best_fit(folder / "in", folder / "out", length);
      const auto samples = samples_of(folder / "out");
      CHECK(result.samples == std::ssize(samples));
      std::map<int32_t, Document> parts;  // by their first token
      for (const auto& sample : samples) {
        for (const Document& document : sample) {
          CHECK(std::ssize(document) <= length + 1);
          CHECK(parts.emplace(document.front(), document).second);
        }
        CHECK(std::is_sorted(sample.begin(), sample.end()));  // in input order
      }
      int64_t cut = 0;
      for (const auto& document : documents) {
        const auto whole = static_cast<int64_t>(document.size());
        cut += whole > length + 1 ? 1 : 0;
        Document found;
        int64_t pieces = 0;
        while (std::ssize(found) < whole) {
          const auto part = parts.extract(static_cast<int32_t>(document[found.size()]));
          REQUIRE(part);
          found.insert(found.end(), part.mapped().begin(), part.mapped().end());
          ++pieces;
        }
        CHECK(std::equal(found.begin(), found.end(), document.begin(), document.end()));
        CHECK(pieces == (whole + length) / (length + 1));
      }
      CHECK(parts.empty());
      CHECK(result.cut_documents == cut);
      CHECK(TokenFile(folder / "out").dtype() == (code == 8 ? DType::u16 : DType::i32));
    }
  }
}

TEST_CASE("A sample of whole documents is read with its padding, which does not count") {
  const TemporaryFolder folder;
  RawTokenFile::of(counting_documents({3, 5, 2, 1, 6, 1}), 8).write(folder / "in");
  // Samples of at most six tokens: the 6; the 5 and a 1; the 3, the 2 and a 1.
  write_best_fit(folder / "in", folder / "out", 5);
  const Dataset dataset({{folder / "out", 1}}, 5, vocab_size, 1, false);
  const auto report = dataset.report(3)[0];
  CHECK(report.samples == 3);
  CHECK(report.documents == 6);
  CHECK(report.tokens == 18);
  CHECK(report.padding == 0);
  Document tokens(5), targets(5), starts(5);
  dataset.read(0, tokens.data(), targets.data(), starts.data());
  CHECK(tokens == Document{0, 1, 2, 200, 201});
  CHECK(targets == Document{1, 2, 200, 201, 300});
  CHECK(starts == Document{0, 0, 0, 3, 3});

  write_best_fit(folder / "in", folder / "wide", 8);  // 6, 3; 5, 2, 1, 1
  const Dataset wide({{folder / "wide", 1}}, 8, vocab_size, 1, false);
  REQUIRE(wide.report(1)[0].samples == 2);
  CHECK(wide.report(1)[0].padding == Approx(0.0));
  write_best_fit(folder / "in", folder / "wider", 11);  // 6, 5, 1; 3, 2, 1
  const Dataset wider({{folder / "wider", 1}}, 11, vocab_size, 1, false);
  CHECK(wider.report(1)[0].padding == Approx(6.0 / 22));
  tokens.resize(11), targets.resize(11), starts.resize(11);
  wider.read(0, tokens.data(), targets.data(), starts.data());
  CHECK(tokens == Document{0, 1, 2, 200, 201, 500, 0, 0, 0, 0, 0});
  CHECK(targets == Document{1, 2, 200, 201, 500, -1, -1, -1, -1, -1, -1});
  CHECK(starts == Document{0, 0, 0, 3, 3, 5, 6, 6, 6, 6, 6});
  CHECK(wider.count_targets(0, 1) == 5);
  CHECK(wider.count_targets(0, 2) == 16);
  CHECK(wider.count_targets(1, 3) == 11 + 5 + 11);
}

TEST_CASE("Targets are counted without reading them, over mixtures and epochs") {
  const TemporaryFolder folder;
  std::mt19937_64 random(3);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 60; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % 25));
  RawTokenFile::of(counting_documents(lengths), 8).write(folder / "in");
  write_best_fit(folder / "in", folder / "fitted", 16);
  const std::vector<DataSource> sources = {{folder / "in", 1}, {folder / "fitted", 2}};
  const Dataset dataset(sources, 16, vocab_size, 5, true);
  Document tokens(16), targets(16);
  for (int64_t first = 0; first < 300; first += 7) {
    int64_t counted = 0;
    for (int64_t sample = first; sample < first + 7; ++sample) {
      dataset.read(sample, tokens.data(), targets.data());
      counted += std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
    }
    CHECK(dataset.count_targets(first, 7) == counted);
  }
  CHECK(Dataset({{folder / "in", 1}}, 16, vocab_size, 5, true).count_targets(3, 7) == 7 * 16);
}

TEST_CASE("Samples that a run cannot use are refused") {
  const TemporaryFolder folder;
  RawTokenFile::of(counting_documents({3, 5, 2}), 8).write(folder / "in");
  write_best_fit(folder / "in", folder / "out", 4);
  const auto open = [&](int64_t length) { Dataset({{folder / "out", 1}}, length, vocab_size, 1, false); };
  open(4);
  for (const int64_t length : {3, 5})
    CHECK(contains(error_of(ExitCode::usage, [&] { open(length); }), "--best-fit 4; set model.sequence_length to 4"));

  RawTokenFile::of(counting_documents({1, 1}), 8).write(folder / "ones");
  write_best_fit(folder / "ones", folder / "single", 1);
  CHECK(Dataset({{folder / "single", 1}}, 1, vocab_size, 1, false).count_targets(0, 1) == 1);
  RawTokenFile::of(counting_documents({1}), 8).write(folder / "ones");
  write_best_fit(folder / "ones", folder / "single", 1);
  const Dataset nothing({{folder / "single", 1}}, 1, vocab_size, 1, false);
  CHECK(contains(error_of(ExitCode::data, [&] { nothing.count_targets(0, 4); }), "samples 0 to 3"));

  // The index and .meta.json must match.
  std::string meta = read_file(folder / "out.meta.json");
  const size_t at = meta.find("\"best_fit_length\": 4");
  REQUIRE(at != meta.npos);
  meta.replace(at, 20, "\"best_fit_length\": 3");
  write_file(folder / "out.meta.json", meta);
  CHECK(contains(error_of(ExitCode::data, [&] { open(3); }), "sample 0 has 5 tokens"));
  meta.replace(at, 20, "\"best_fit_length\":-3");
  write_file(folder / "out.meta.json", meta);
  CHECK(contains(error_of(ExitCode::data, [&] { open(3); }), "no length of a sample"));
}

TEST_CASE("Files of samples can be joined, not converted") {
  const TemporaryFolder folder;
  RawTokenFile::of(counting_documents({3, 5, 2}), 8).write(folder / "in");
  write_best_fit(folder / "in", folder / "a", 5);
  write_best_fit(folder / "in", folder / "b", 5);
  write_best_fit(folder / "in", folder / "c", 6);
  const auto progress = [](int64_t, int64_t) {};
  join_token_files({folder / "a", folder / "b"}, folder / "joined", progress);
  auto expected = samples_of(folder / "a");
  const auto second = samples_of(folder / "b");
  expected.insert(expected.end(), second.begin(), second.end());
  CHECK(samples_of(folder / "joined") == expected);
  CHECK(TokenFile(folder / "joined").best_fit_length() == 5);
  for (const char* other : {"c", "in"}) {
    const auto join = [&] { join_token_files({folder / "a", folder / other}, folder / "no", progress); };
    CHECK(contains(error_of(ExitCode::usage, join), "cannot be joined"));
  }
  ConvertOptions options;
  options.in = folder / "a";
  options.out = folder / "a.npy";
  options.to = TokenFormat::npy;
  const auto convert = [&] { convert_tokens(options, progress); };
  CHECK(contains(error_of(ExitCode::usage, convert), "--best-fit 5"));
}

TEST_CASE("A pack with best fit: whole texts, the same bytes with any threads, shards that go on, nothing left over") {
  const TemporaryFolder folder;
  std::string lines;
  std::mt19937_64 random(4);
  std::set<std::string> texts;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = std::to_string(i) + std::string(random() % 90, 'x');
    texts.insert(text);
    lines += "{\"text\": \"" + text + "\"}\n";
  }
  write_file(folder / "in.jsonl", lines);
  PackOptions options;
  options.inputs = {(folder / "in.jsonl").native()};
  options.tokenizer = std::make_shared<Tokenizer>();
  options.best_fit_length = 64;
  options.out_prefix = folder / "whole";
  const PackResult result = pack(options, nullptr);
  CHECK(result.documents == 3000);
  CHECK(result.cut_documents > 0);
  const auto samples = samples_of(folder / "whole");
  CHECK(result.samples == std::ssize(samples));
  int64_t whole = 0;
  for (const auto& sample : samples) {
    for (const Document& document : sample) {
      if (document.back() != 256) continue;
      whole += texts.contains(std::string(document.begin(), document.end() - 1)) ? 1 : 0;
    }
  }
  const auto short_texts =
      std::count_if(texts.begin(), texts.end(), [](const std::string& text) { return text.size() + 1 <= 65; });
  CHECK(whole == short_texts);

  options.threads = 3;
  options.out_prefix = folder / "threads";
  pack(options, nullptr);
  for (const char* suffix : {".bin", ".idx", ".meta.json"})
    CHECK(read_file(folder / (std::string("whole") + suffix)) == read_file(folder / (std::string("threads") + suffix)));

  options.shard_tokens = 40'000;
  options.out_prefix = folder / "shards";
  const PackResult shards = pack(options, nullptr);
  CHECK(shards.documents == 3000);
  CHECK(shards.shards > 2);
  CHECK(TokenFile(folder / "shards-00001").best_fit_length() == 64);
  options.resume = true;
  CHECK(pack(options, nullptr).was_finished);
  options.best_fit_length = 65;
  CHECK(contains(error_of(ExitCode::usage, [&] { pack(options, nullptr); }), "another --best-fit"));
  for (const std::string& name : file_names(folder.path())) CHECK_FALSE(contains(name, "unfitted"));
}

}  // namespace
}  // namespace gptrain
