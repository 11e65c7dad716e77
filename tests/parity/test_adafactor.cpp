// Adafactor's steps have the length that the config gives, matrix by matrix.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"

namespace test_adafactor {

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

using Values = std::map<std::string, std::vector<float>>;

Values weights_after(Family family, int steps, std::vector<std::string> overrides) {
  overrides.push_back("optimizer.type=adafactor");
  const RunConfig config = small_config(family, overrides);
  const auto backend = make_cpu_backend(1);
  testing::OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  RandomBatches batches(config);
  for (int i = 0; i < steps; ++i) step.run(1e-2, batches);
  Values weights;
  for (const auto& piece : step.state()) {
    if (piece.count() > 0)
      weights[step.spec().tensors[static_cast<size_t>(piece.tensor)].name].assign(piece.weight,
                                                                                  piece.weight + piece.count());
  }
  return weights;
}

double root_mean_square(const std::vector<float>& values, size_t first, size_t count) {
  double squares = 0;
  for (size_t i = first; i < first + count; ++i)
    squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return std::sqrt(squares / static_cast<double>(count));
}

// Calls body(first, count) for the elements of each matrix or vector in a tensor.
template <typename Body>
void for_each_part(const TensorSpec& tensor, const Body& body) {
  std::vector<Section> parts = tensor.sections;
  if (parts.empty()) parts = {{tensor.shape[0], 1}};
  size_t first = 0;
  for (const Section& part : parts) {
    const auto count = static_cast<size_t>(part.rows * (tensor.count() / tensor.shape[0]));
    body(first, count);
    first += count;
  }
}

}  // namespace

// Every step is clipped here, so that its length does not depend on the gradient.
TEST_CASE("Adafactor moves each matrix and vector by a share of its own root mean square, or of eps2") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const bool scaled : {true, false}) {
      const std::vector<std::string> clipped = {"optimizer.weight_decay=0", "optimizer.clip_threshold=0.1"};
      std::vector<std::string> overrides = clipped;
      overrides.push_back(scaled ? "optimizer.eps2=0.004" : "optimizer.scale_parameter=false");
      const Values before = weights_after(family, 0, overrides), after = weights_after(family, 1, overrides);
      int parts = 0;
      for (const TensorSpec& tensor : make_spec(small_config(family).model).tensors) {
        const std::vector<float>&from = before.at(tensor.name), &to = after.at(tensor.name);
        std::vector<float> change(from.size());
        std::transform(to.begin(), to.end(), from.begin(), change.begin(), std::minus<>());
        for_each_part(tensor, [&](size_t first, size_t count) {
          INFO(tensor.name << " from " << first << ", scaled " << scaled);
          const double share = scaled ? std::max(0.004, root_mean_square(from, first, count)) : 1.0;
          CHECK(root_mean_square(change, first, count) == Approx(1e-2 * 0.1 * share).epsilon(1e-4));
          ++parts;
        });
      }
      CHECK(parts > 30);
    }
  }
}

TEST_CASE("what the config says about Adafactor reaches its steps") {
  const auto weights = [](const std::vector<std::string>& overrides) {
    const Values all = weights_after(Family::gpt2, 2, overrides);
    return std::vector<std::vector<float>>{all.at("embedding.token"), all.at("blocks.1.ffn.out.bias")};
  };
  const auto usual = weights({});
  for (const char* const key : {"optimizer.beta2_decay=-0.5", "optimizer.eps=1e-3", "optimizer.eps2=0.1",
                                "optimizer.clip_threshold=0.5", "optimizer.scale_parameter=false"}) {
    INFO(key);
    const auto other = weights({key});
    CHECK(other[0] != usual[0]);
    CHECK(other[1] != usual[1]);
  }
  const auto decayed = weights({"optimizer.weight_decay=0.5"});
  CHECK(decayed[0] != usual[0]);
}

}  // namespace test_adafactor
