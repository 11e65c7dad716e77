#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "catch.h"
#include "data/dataset.h"
#include "support.h"

namespace gptrain {
namespace {

using test::contains;
using test::error_of;
using test::RawTokenFile;
using test::write_counting_tokens;

constexpr int64_t wide_vocabulary = 60000;

struct Sample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
};

Sample sample_of(const Dataset& dataset, int64_t number, size_t sequence_length) {
  Sample sample{std::vector<int32_t>(sequence_length), std::vector<int32_t>(sequence_length)};
  dataset.read(number, sample.tokens.data(), sample.targets.data());
  return sample;
}

TEST_CASE("A sample is T + 1 tokens, and neighbours overlap by one") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "count", 0, 4 * 10 + 3);
  const Dataset dataset({{folder / "count", 1}}, 4, wide_vocabulary, 1, false);
  REQUIRE(dataset.report(1)[0].samples == 10);
  CHECK(sample_of(dataset, 0, 4).tokens == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(sample_of(dataset, 0, 4).targets == std::vector<int32_t>{1, 2, 3, 4});
  CHECK(sample_of(dataset, 1, 4).tokens == std::vector<int32_t>{4, 5, 6, 7});
  CHECK(sample_of(dataset, 9, 4).targets == std::vector<int32_t>{37, 38, 39, 40});
  CHECK(sample_of(dataset, 10, 4).tokens == std::vector<int32_t>{0, 1, 2, 3});  // the next epoch
}

TEST_CASE("Samples run across the ends of documents, in both dtypes") {
  const TemporaryFolder folder;
  for (const int code : {4, 8}) {
    RawTokenFile::of({{1, 2, 256}, {3, 256}, {4, 5, 6, 256}}, code).write(folder / "docs");
    const Dataset dataset({{folder / "docs", 1}}, 4, wide_vocabulary, 1, false);
    CHECK(sample_of(dataset, 0, 4).tokens == std::vector<int32_t>{1, 2, 256, 3});
    CHECK(sample_of(dataset, 0, 4).targets == std::vector<int32_t>{2, 256, 3, 256});
    CHECK(sample_of(dataset, 1, 4).tokens == std::vector<int32_t>{256, 4, 5, 6});
    CHECK(sample_of(dataset, 1, 4).targets == std::vector<int32_t>{4, 5, 6, 256});
  }
}

// Computes document starts by walking through the index from its start.
std::vector<int32_t> expected_starts(const RawTokenFile& raw, int64_t first, int64_t count) {
  std::vector<int64_t> start_of_token;
  for (size_t document = 0; document + 1 < raw.boundaries.size(); ++document) {
    const auto start = static_cast<int64_t>(start_of_token.size());
    for (int64_t sequence = raw.boundaries[document]; sequence < raw.boundaries[document + 1]; ++sequence)
      start_of_token.insert(start_of_token.end(), static_cast<size_t>(raw.lengths[static_cast<size_t>(sequence)]),
                            start);
  }
  std::vector<int32_t> starts;
  for (int64_t i = first; i < first + count; ++i)
    starts.push_back(static_cast<int32_t>(std::max<int64_t>(start_of_token[static_cast<size_t>(i)] - first, 0)));
  return starts;
}

TEST_CASE("The starts of documents are those of the index, wherever samples cut them") {
  const TemporaryFolder folder;
  // Documents of no, one, few and many tokens, some of several sequences, empty ones at both ends and in a row.
  std::vector<std::vector<int64_t>> sequences;
  for (const size_t length : {0, 3, 1, 1, 0, 0, 7, 2, 16, 5, 40, 1, 4, 0})
    sequences.emplace_back(length, static_cast<int64_t>(length));
  RawTokenFile raw = RawTokenFile::of(sequences, 8);
  raw.boundaries = {0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 14, 14};
  raw.num_boundaries = static_cast<int64_t>(raw.boundaries.size());
  raw.write(folder / "docs");
  for (const int64_t length : {1, 2, 5, 8, 16, 79}) {
    INFO(length << " tokens of a sample");
    const Dataset dataset({{folder / "docs", 1}}, length, wide_vocabulary, 1, false);
    std::vector<int32_t> tokens(static_cast<size_t>(length)), targets(tokens), starts(tokens);
    for (int64_t sample = 0; sample < dataset.report(1)[0].samples; ++sample) {
      dataset.read(sample, tokens.data(), targets.data(), starts.data());
      CHECK(starts == expected_starts(raw, sample * length, length));
    }
  }
}

TEST_CASE("A sequence of one token works") {
  const TemporaryFolder folder;
  RawTokenFile::of({{7, 8}}, 8).write(folder / "two");
  const Dataset dataset({{folder / "two", 1}}, 1, wide_vocabulary, 1, true);
  CHECK(sample_of(dataset, 5, 1).tokens == std::vector<int32_t>{7});
  CHECK(sample_of(dataset, 5, 1).targets == std::vector<int32_t>{8});
}

TEST_CASE("A shuffled epoch holds every sample once") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "count", 0, 301);
  const Dataset dataset({{folder / "count", 1}}, 3, wide_vocabulary, 9, true);
  // Sample number n is slot p(n) of a cycle of 65,536, so an epoch's samples are anywhere in the cycle.
  std::vector<int> times(100);
  for (int64_t n = 0; n < 65536; ++n) {
    const Sample sample = sample_of(dataset, n, 3);
    REQUIRE(sample.tokens[0] % 3 == 0);
    ++times[static_cast<size_t>(sample.tokens[0] / 3)];
  }
  CHECK(std::set<int>(times.begin(), times.end()) == std::set<int>{655, 656});
}

TEST_CASE("The order depends on the seed, not on the vocabulary or on what was read before") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "count", 0, 5001);
  const auto first_tokens = [&](const Dataset& dataset, bool backwards) {
    std::vector<int32_t> tokens(100);
    for (int64_t i = 0; i < 100; ++i) {
      const int64_t n = backwards ? 99 - i : i;
      tokens[static_cast<size_t>(n)] = sample_of(dataset, n, 5).tokens[0];
    }
    return tokens;
  };
  const std::vector<DataSource> sources = {{folder / "count", 1}};
  const auto tokens = first_tokens(Dataset(sources, 5, wide_vocabulary, 3, true), false);
  CHECK(tokens == first_tokens(Dataset(sources, 5, wide_vocabulary + 1, 3, true), true));
  CHECK(tokens != first_tokens(Dataset(sources, 5, wide_vocabulary, 4, true), false));
}

TEST_CASE("A mixture reads the right file, and the report says how much of each") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "low", 0, 101);
  write_counting_tokens(folder / "high", 1000, 1001);
  const Dataset dataset({{folder / "low", 1}, {folder / "high", 2}}, 10, wide_vocabulary, 5, true);
  int64_t low = 0;
  for (int64_t n = 0; n < 70000; ++n) {
    if (sample_of(dataset, n, 10).tokens[0] < 1000) ++low;
  }
  const auto reports = dataset.report(70000);
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].path == folder / "low");
  CHECK(reports[0].asked_share == Approx(1.0 / 3));
  CHECK(reports[0].share == 21845.0 / 65536);
  CHECK(reports[1].share == 43691.0 / 65536);
  CHECK(reports[0].tokens == 101);
  CHECK(reports[0].documents == 1);
  CHECK(reports[0].samples == 10);
  CHECK(reports[1].samples == 100);
  CHECK(reports[0].epochs == static_cast<double>(low) / 10);
  CHECK(reports[1].epochs == static_cast<double>(70000 - low) / 100);
}

TEST_CASE("A source that is told by its tokens is counted beside one with files, and no run takes it") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "count", 0, 101);
  DataConfig data;
  data.train = {{.path = folder / "count"}, {.path = "nowhere", .weight = 3, .tokens = 401}};
  const Dataset dataset(data.train, 4, wide_vocabulary, 1, true);
  const auto report = dataset.report(400);
  CHECK(report[1].tokens == 401);
  CHECK(report[1].samples == 100);
  CHECK(report[1].epochs == Approx(3).epsilon(0.1));
  CHECK(report[0].samples == 25);
  CHECK(contains(error_of(ExitCode::usage, [&] { require_token_files(data); }),
                 "data.train[1].tokens = 401: only `data mix` and dry runs can do without the files of nowhere"));
  data.train.pop_back();
  CHECK_NOTHROW(require_token_files(data));
}

TEST_CASE("What cannot be trained on is refused when it is opened") {
  const TemporaryFolder folder;
  write_counting_tokens(folder / "short", 0, 8);
  const auto open = [&](const std::vector<DataSource>& sources) { Dataset(sources, 8, wide_vocabulary, 1, true); };
  CHECK(contains(error_of(ExitCode::data,
                          [&] {
                            open({{folder / "short", 1}});
                          }),
                 "short.bin: 8 tokens are too few for one sample of model.sequence_length + 1 = 9 tokens"));
  CHECK(contains(error_of(ExitCode::data, [&] { open({{folder / "gone", 1}}); }), "gone.idx does not exist"));
  for (const double weight :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK(contains(error_of(ExitCode::usage, [&] { open({{folder / "short", weight}}); }), "must be positive"));
  }
  CHECK(contains(error_of(ExitCode::usage, [&] { open({}); }), "0 data sources; there must be from 1 to 65536"));
}

TEST_CASE("A token beyond the vocabulary names file and byte, as a token and as the last target") {
  const TemporaryFolder folder;
  RawTokenFile::of({{1, 2, 3, 4, 300}}, 8).write(folder / "v");
  const auto message = [&](int64_t sequence_length) {
    const Dataset dataset({{folder / "v", 1}}, sequence_length, 257, 1, false);
    return error_of(ExitCode::data, [&] {
      for (int64_t n = 0; n < 4 / sequence_length; ++n) sample_of(dataset, n, static_cast<size_t>(sequence_length));
    });
  };
  CHECK(contains(message(4), "v.bin, byte 8: token 300 at position 4 is outside the vocabulary of 257"));
  CHECK(contains(message(2), "v.bin, byte 8: token 300 at position 4"));
}

TEST_CASE("The document of a bad token is counted over all files of its source, and is not where its sample begins") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "set");
  RawTokenFile::of({{1, 2}, {3, 4}, {5}}, 8).write(folder / "set" / "a");
  RawTokenFile::of({{1, 2}, {3, 4, 300}, {5, 6}}, 8).write(folder / "set" / "b");
  const Dataset dataset({{folder / "set", 1}}, 4, 257, 1, true);
  const std::string text = error_of(ExitCode::data, [&] {
    for (int64_t n = 0; n < 2; ++n) sample_of(dataset, n, 4);
  });
  CHECK(contains(text, "b.bin, byte 8: token 300 at position 4"));
  CHECK(contains(text, " of the order, in document 4 of " + (folder / "set").native() + "; add {\"first\": "));
}

}  // namespace
}  // namespace gptrain
