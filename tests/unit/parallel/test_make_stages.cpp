// Layers on stages: by number if they are alike, otherwise by their own FLOPs.
#include <algorithm>
#include <fmt/format.h>
#include <random>
#include <vector>

#include "catch.h"
#include "config/load.h"
#include "model/spec/layer_kinds.h"
#include "parallel/make_stages.h"

namespace gptrain {
namespace {

RunConfig staged(int64_t layers, const std::string& pattern, int64_t stages, int64_t vocab_size = 64) {
  return parse_config(fmt::format(R"({{"model": {{"num_layers": {}, "hidden_size": 64, "num_heads": 4, "vocab_size": {},
                                  "sequence_length": 4096, "attention_pattern": {}}},
                       "data": {{"train": [{{"path": "x"}}]}}, "batch": {{"global": 1}}, "optimizer": {{"lr": 1e-3}},
                       "parallel": {{"pipeline": {}}}, "run": {{"steps": 1, "out": "x"}}}})",
                                  layers, vocab_size, pattern, stages),
                      {}, "test", stages);
}

double largest_load(const ModelConfig& model, const std::vector<int64_t>& counts) {
  const LayerKinds kinds = layer_kinds(model);
  double largest = 0;
  int64_t layer = 0;
  for (size_t chunk = 0; chunk < counts.size(); ++chunk) {
    double load = 0;
    for (int64_t i = 0; i < counts[chunk]; ++i) load += forward_flops(model, kinds.kinds[kinds.of(layer++)]);
    if (chunk + 1 == counts.size()) load += 2.0 * static_cast<double>(model.hidden_size * model.vocab_size);
    largest = std::max(largest, load);
  }
  return largest;
}

// Returns the smallest largest load of all ways to give layers to chunks, by trying them.
double least_load(const ModelConfig& model, std::vector<int64_t>& counts, size_t chunk, int64_t left) {
  if (chunk + 1 == counts.size()) {
    counts[chunk] = left;
    return largest_load(model, counts);
  }
  double least = INFINITY;
  for (counts[chunk] = 1; left - counts[chunk] >= std::ssize(counts) - static_cast<int64_t>(chunk) - 1; ++counts[chunk])
    least = std::min(least, least_load(model, counts, chunk + 1, left - counts[chunk]));
  return least;
}

}  // namespace

TEST_CASE("layers have kinds, in the order of the first of each") {
  const LayerKinds kinds = layer_kinds(staged(5, R"(["band:7","dense"])", 1).model);
  CHECK(kinds.of_layers == std::vector<size_t>{0, 1, 0, 1, 0});
  CHECK(kinds.kinds[0].attention == window_pattern(7));
  CHECK(kinds.counts(1, 4) == std::vector<int64_t>{2, 2});
  CHECK(layer_kinds(staged(5, R"(["dense","dense"])", 1).model).kinds.size() == 1);
}

TEST_CASE("equal chunks stay equal, unequal ones are balanced") {
  CHECK(layers_of_chunks(staged(12, R"(["dense"])", 3, 10'000)) == std::vector<int64_t>{4, 4, 4});
  CHECK(layers_of_chunks(staged(12, R"(["dense","band:64"])", 3, 10'000)) == std::vector<int64_t>{4, 4, 4});
  CHECK(balanced_layers(staged(12, R"(["dense"])", 3, 10'000)) == std::vector<int64_t>{5, 5, 2});
  // Each of the first half's layers takes as long as several of the others.
  const auto counts =
      layers_of_chunks(staged(8, R"(["dense","dense","dense","dense","band:1","band:1","band:1","band:1"])", 2));
  CHECK(counts == std::vector<int64_t>{2, 6});
}

TEST_CASE("no other way to place the layers has a smaller largest load") {
  std::mt19937_64 random(1);
  const std::vector<std::string> words = {R"("dense")", R"("band:64")", R"("band:1024")"};
  for (int i = 0; i < 40; ++i) {
    const auto stages = static_cast<int64_t>(2 + random() % 3), layers = static_cast<int64_t>(stages + random() % 6);
    std::string pattern = R"(["dense")";
    for (uint64_t word = 0; word < random() % 6; ++word) pattern += "," + words[random() % words.size()];
    const RunConfig config = staged(layers, pattern + "]", stages, static_cast<int64_t>(64 << random() % 8));
    INFO(pattern << ", " << layers << " layers on " << stages);
    std::vector<int64_t> counts(static_cast<size_t>(stages));
    const double least = least_load(config.model, counts, 0, layers);
    CHECK(largest_load(config.model, balanced_layers(config)) <= least * (1 + 1e-5));
  }
}

}  // namespace gptrain
