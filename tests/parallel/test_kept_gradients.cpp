// Gradients stored in bf16 (precision.gradients): the same bits over layouts, no bias, and successful learning.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "pure_training.h"
#include "ranks.h"
#include "wrappers.h"

namespace test_kept_gradients {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr const char* narrow = "bf16";

float at(const StateSlice& piece, int64_t i) {
  return piece.gradient != nullptr ? piece.gradient[i] : to_float(piece.narrow_gradient[i]);
}

// The first step's summed gradients by tensor and global element, and the gradient norm of the step.
struct Gradients {
  std::map<std::string, std::vector<double>> of_tensors;
  double norm = 0;
};

Gradients gradients_of(const RunConfig& config, int64_t ranks) {
  Gradients gradients;
  std::mutex mutex;
  on_ranks(config, ranks, nullptr, {}, [&](RankContext& rank) {
    RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
    const StepResult result = rank.step.run(1e-3, batches);
    const std::lock_guard lock(mutex);
    gradients.norm = result.grad_norm;
    for (const StateSlice& piece : rank.step.state(true)) {
      const TensorSpec& tensor = rank.step.spec().tensors[static_cast<size_t>(piece.tensor)];
      std::vector<double>& all = gradients.of_tensors[tensor.name];
      all.resize(static_cast<size_t>(tensor.count()));
      const bool matrix = tensor.shape.size() == 2;
      const int64_t cols = matrix ? tensor.shape[1] : 1, width = matrix ? piece.shape[1] : 1;
      for (int64_t i = 0; i < piece.count(); ++i) {
        const int64_t col = (matrix ? piece.offset[1] : 0) + i % width;
        all[static_cast<size_t>((piece.offset[0] + i / width) * cols + col)] = static_cast<double>(at(piece, i));
      }
    }
  });
  return gradients;
}

// Rounding errors of gradients: their size, and their bias along the gradient.
struct Errors {
  double relative = 0;    // L2
  double deviations = 0;  // sum of errors towards zero, in standard deviations
};

// Errors are independent, so the squares add up to the variance of their sum.
Errors errors_of(const Gradients& kept, const Gradients& exact) {
  double errors = 0, squares = 0, towards_zero = 0;
  for (const auto& [name, values] : exact.of_tensors) {
    const std::vector<double>& others = kept.of_tensors.at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = others[i] - values[i];
      errors += error * error;
      squares += values[i] * values[i];
      towards_zero += values[i] < 0 ? error : -error;
    }
  }
  return {std::sqrt(errors / squares), towards_zero / std::sqrt(errors)};
}

// Number of draws by (key, number of the sum).
using Draws = std::map<std::tuple<uint32_t, uint32_t, uint32_t>, int>;

class DrawRecorder final : public ForwardingBackend {
 public:
  DrawRecorder(Backend& inner, Draws& draws, std::mutex& mutex)
      : ForwardingBackend(inner), draws_(draws), mutex_(mutex) {}

  using ForwardingBackend::run;
  void run(const KeepGradients& op) override {
    {
      const std::lock_guard lock(mutex_);
      for (int64_t i = 0; i < op.num_segments; ++i) ++draws_[{op.segments[i].key.k0, op.segments[i].key.k1, op.draw}];
    }
    inner_.run(op);
  }

 private:
  Draws& draws_;
  std::mutex& mutex_;
};

}  // namespace

TEST_CASE("gradients in bf16: ZeRO 0 and 1, and 2 and 3, give the same bits, with every recompute mode", "[long]") {
  require_same_over_zero(narrow, 1);
}

TEST_CASE("gradients in bf16: pipelines give the bits of one stage, and one micro-batch those of every ZeRO stage") {
  const Outcome one = train_pure(Family::llama, {1, 1, {"batch.micro=2", "model.num_layers=4"}}, narrow, 2);
  for (const char* schedule : {"1f1b", "interleaved", "zero-bubble"}) {
    INFO(schedule);
    const PureLayout two{1,
                         2,
                         {"batch.micro=2", "model.num_layers=4", "parallel.pipeline=2",
                          fmt::format("parallel.pipeline_schedule={}", schedule)}};
    require_same(one, train_pure(Family::llama, two, narrow, 2));
  }
  const auto zero = [](int stage, const char* optimizer) {
    const PureLayout layout{
        1, 2, {"batch.micro=6", fmt::format("parallel.zero={}", stage), fmt::format("optimizer.type={}", optimizer)}};
    return train_pure(Family::llama, layout, narrow, 2);
  };
  for (const char* optimizer : {"adamw", "adamw-8bit", "lion", "sgd"}) {
    INFO(optimizer);
    require_same(zero(0, optimizer), zero(3, optimizer));
  }
}

// With truncation instead of rounding all would be nearer to zero, by a hundred standard deviations. One in a hundred
// thousand seeds would be off by five for one of the layouts.
TEST_CASE("gradients in bf16 are the exact ones of every layout, rounded without a bias, and the norm is theirs",
          "[long]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const PureLayout& layout : {PureLayout{1, 1, {"batch.micro=1"}},
                                     {1, 2, {"batch.micro=1", "parallel.zero=0"}},
                                     {1, 2, {"batch.micro=1", "parallel.zero=1"}},
                                     {1, 3, {"batch.micro=1", "parallel.zero=2", "precision.reduce=bf16"}},
                                     {1, 3, {"batch.micro=1", "parallel.zero=3"}},
                                     {2, 2, {"batch.micro=2", "parallel.sequence=true"}},
                                     {1, 2, {"batch.micro=2", "parallel.pipeline=2"}},
                                     {1, 4, {"batch.micro=2", "parallel.pipeline=2", "parallel.zero=1"}}}) {
      INFO(layout.name());
      const Gradients kept = gradients_of(pure_config(family, layout, narrow), layout.ranks);
      const Gradients exact = gradients_of(pure_config(family, layout, "fp32"), layout.ranks);
      const Errors errors = errors_of(kept, exact);
      fmt::print("{}: gradients are {:.2e} away, {:+.2f} deviations towards zero\n", layout.name(), errors.relative,
                 errors.deviations);
      CHECK(errors.relative > 1e-4);
      CHECK(errors.relative < 0.01);
      CHECK(std::abs(errors.deviations) < 5);
      double squares = 0;
      for (const auto& [name, values] : kept.of_tensors)
        for (const double value : values) squares += value * value;
      CHECK(kept.norm == Approx(std::sqrt(squares)).epsilon(1e-6));
    }
  }
}

TEST_CASE("gradients in bf16: no two sums of a step draw the same random bits, but on ranks that hold the same") {
  const auto draws_of = [](const std::vector<std::string>& overrides) {
    Draws draws;
    std::mutex mutex;
    const RunConfig config = pure_config(Family::gpt2, {1, 2, overrides}, narrow);
    const Wrapping recording{
        .backend = [&](int64_t, Backend& inner) { return std::make_unique<DrawRecorder>(inner, draws, mutex); }};
    on_ranks(config, 2, nullptr, recording, [&](RankContext& rank) {
      RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      rank.step.run(1e-3, batches);
    });
    return draws;
  };
  const auto tensors =
      static_cast<int64_t>(make_spec(pure_config(Family::gpt2, {1, 1, {}}, narrow).model).tensors.size());
  // Three micro-batches: for the first two each rank sums its own gradients (sums 0 and 1, or 3 and 4); for the last it
  // sums those of all ranks.
  const Draws own = draws_of({"batch.micro=2", "parallel.zero=0"});
  CHECK(std::ssize(own) == 5 * tensors);
  for (const auto& [draw, times] : own) CHECK(times == (std::get<2>(draw) == 2 ? 2 : 1));
  // Two stages with a tied head's table each round a sum of their own. Three micro-batches, each summed once.
  const Draws tied = draws_of({"batch.micro=4", "parallel.pipeline=2"});
  CHECK(std::ssize(tied) == 3 * (tensors + 1));
  for (const auto& [draw, times] : tied) CHECK(times == 1);
  std::set<uint32_t> numbers;
  for (const auto& [draw, times] : draws_of({"batch.micro=2", "parallel.zero=3"})) numbers.insert(std::get<2>(draw));
  CHECK(numbers == std::set<uint32_t>{0, 1, 2});
}

TEST_CASE("gradients in bf16: a step that is not finite changes no bit, on no rank") {
  require_unchanged_by_infinity(narrow);
}

TEST_CASE("gradients in bf16 train as those in f32 do") {
  for (const std::string optimizer : {"adamw", "adamw-8bit"}) {
    const auto fall = [&](const std::string& gradients) {
      const RunConfig config =
          small_config(Family::gpt2, {"precision.compute=bf16-pure", "precision.gradients=" + gradients,
                                      "optimizer.weight_decay=0", "optimizer.type=" + optimizer});
      return fall_of_loss(config, 2e-4, 60);
    };
    const double wide = fall("fp32"), kept = fall(narrow);
    fmt::print("{}: the loss falls by {:.4f} with gradients in f32, {:.4f} in bf16\n", optimizer, wide, kept);
    CHECK(wide > 0.02);
    CHECK(kept == Approx(wide).epsilon(0.05));
  }
}

}  // namespace test_kept_gradients
