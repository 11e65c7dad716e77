// 0/1 Adam over ranks against its formulas in float64, which tools/compare/zero_one_adam.py computes.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "config/zero_one_steps.h"
#include "model_fixture.h"
#include "parallel/compressed_reducer.h"
#include "parallel/parameter_exchange.h"
#include "summing_rank.h"

namespace gptrain::zero_one_adam_test {
namespace {

constexpr int64_t num_ranks = 3, unit = 1, freeze_step = 8;
constexpr double rate = 1e-2;

OptimizerConfig of_steps(int64_t freeze, int64_t variance_scaler, int64_t local_scaler, int64_t local_most) {
  OptimizerConfig config;
  config.type = OptimizerKind::zero_one_adam;
  config.freeze_step = freeze;
  config.variance_scaler = variance_scaler;
  config.local_scaler = local_scaler;
  config.local_most = local_most;
  return config;
}

class Rank : testing::SummingRank {
 public:
  using SummingRank::SummingRank;

  // Trains the unit and compares its weights with the golden ones.
  void check(const nlohmann::json& golden) {
    state_.learning_rate = static_cast<float>(rate);
    state_.gradient_scale = 1;
    GradientCompression compression = this->compression();
    compression.server_errors = server_errors_column;
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(&compression);
    ParameterExchange plain(*store_, groups_, *backend_, nullptr);
    ParameterExchange coded(*store_, groups_, *backend_, nullptr, [&](const ReductionContext& context, ReplicaGroup) {
      return make_compressed_reducer(context, compression);
    });
    const auto steps = golden.at("steps").get<int64_t>();
    for (int64_t done = 0; done < steps; ++done) {
      // A skipped step, after which the same step is tried again, changes nothing.
      if (done == 2 || done == freeze_step + 5) take_step(plain, coded, *optimizer, done, steps, true);
      if (done == freeze_step) forget_errors(*optimizer);
      take_step(plain, coded, *optimizer, done, steps, false);
    }
    compare(golden.at("parts"));
  }

 private:
  void take_step(ParameterExchange& plain, ParameterExchange& coded, Optimizer& optimizer, int64_t done, int64_t steps,
                 bool skips) {
    const ZeroOneStep kind = zero_one_step(config_.optimizer, done, steps);
    const bool is_alone = kind == ZeroOneStep::local || kind == ZeroOneStep::exchange;
    std::vector<std::byte> buffer(static_cast<size_t>(messages_of(unit).buffer_bytes(false)));
    const UnitGradients of{store_->whole(unit).gradients, buffer.data()};
    for (int64_t i = 0; i < range(unit).elements; ++i) {
      const bool is_late = i % 11 == 3 && done < freeze_step;
      const float gradient = static_cast<float>(testing::hashed(i, unit, rank_, done + 1)) *
                             (0.1F + static_cast<float>(i % 7)) * (is_alone ? static_cast<float>(num_ranks) : 1.0F);
      reinterpret_cast<float*>(of.whole)[i] = is_late ? 0 : gradient;
    }
    state_.skip = skips ? 1 : 0;
    optimizer.expect_sums(is_alone                        ? SumsOfStep::none
                          : kind == ZeroOneStep::variance ? SumsOfStep::plain
                                                          : SumsOfStep::compressed,
                          messages_);
    ParameterExchange& exchange = kind == ZeroOneStep::variance ? plain : coded;
    if (!is_alone) {
      exchange.begin_sum(unit, of);
      if (kind == ZeroOneStep::moment) exchange.go_on_with_sum(unit, of, 1);
      exchange.await_sum(unit, of, 0);
    }
    optimizer.measure();
    optimizer.update(unit);
    if (!is_alone) exchange.end_step(unit);
    if (kind == ZeroOneStep::exchange && !skips) optimizer.average()->average(unit);
  }

  void forget_errors(Optimizer& optimizer) {
    std::fill(residuals_.begin(), residuals_.end(), 0.0F);
    auto* const server = reinterpret_cast<float*>(store_->column(server_errors_column, unit));
    std::fill(server, server + range(unit).elements, 0.0F);
    optimizer.average()->restart();
  }

  void compare(const nlohmann::json& parts) const {
    std::vector<std::vector<int64_t>> runs;
    for (const PieceMessage& piece : messages_of(unit).as<UnitPieces>().pieces)
      for (const MessageRun& run : piece.runs)
        if (run.is_coded()) runs.push_back({run.first, run.count});
    std::vector<std::vector<int64_t>> expected;
    for (const nlohmann::json& part : parts) expected.push_back(part.at("run").get<std::vector<int64_t>>());
    if (runs != expected) throw Error(ExitCode::device, "coded runs are {}", nlohmann::json(runs).dump());
    const float* const weights = store_->update_range(unit).master;
    for (size_t number = 0; number < runs.size(); ++number) {
      const int64_t first = runs[number][0], count = runs[number][1];
      double squares = 0;
      for (int64_t i = first; i < first + count; ++i) squares += std::pow(static_cast<double>(weights[i]), 2);
      const auto norm = parts[number].at("norm").get<double>();
      if (!(std::abs(std::sqrt(squares) - norm) < 1e-5 * norm))
        throw Error(ExitCode::device, "run {} has norm {}, not {}", number, std::sqrt(squares), norm);
      const int64_t at[] = {0, count / 2, count - 1};
      for (size_t i = 0; i < std::size(at); ++i) {
        const auto element = parts[number].at("elements")[i].get<double>();
        const double bound = 1e-5 * norm / std::sqrt(static_cast<double>(count));
        if (!(std::abs(static_cast<double>(weights[first + at[i]]) - element) < bound))
          throw Error(ExitCode::device, "element {} of run {} is {}, not {}", at[i], number, weights[first + at[i]],
                      element);
      }
    }
  }
};

}  // namespace

TEST_CASE("0/1 Adam updates variances ever less often, and then exchanges ever less often") {
  const OptimizerConfig config = of_steps(8, 2, 4, 4);
  std::string kinds;
  for (int64_t done = 0; done < 23; ++done) kinds += "vmle"[static_cast<size_t>(zero_one_step(config, done, 23))];
  CHECK(kinds == "vvmvmvmveeeelelelllelle");
  struct Run {
    int64_t freeze, scaler, local, most, steps;
  };
  for (const auto& [freeze, scaler, local, most, steps] :
       {Run{.freeze = 8, .scaler = 2, .local = 4, .most = 4, .steps = 23},
        {.freeze = 100, .scaler = 3, .local = 7, .most = 16, .steps = 250},
        {.freeze = 5, .scaler = 16, .local = 32768, .most = 16, .steps = 40},
        {.freeze = 50, .scaler = 1, .local = 1, .most = 8, .steps = 30},
        {.freeze = 3, .scaler = 1, .local = 10, .most = 1, .steps = 20}}) {
    const OptimizerConfig other = of_steps(freeze, scaler, local, most);
    ZeroOneCounts counts;
    for (int64_t done = 0; done < steps; ++done) {
      const ZeroOneStep kind = zero_one_step(other, done, steps);
      ++(kind == ZeroOneStep::variance ? counts.variance
         : kind == ZeroOneStep::moment ? counts.moment
         : kind == ZeroOneStep::local  ? counts.local
                                       : counts.exchange);
    }
    const ZeroOneCounts found = count_zero_one_steps(other, steps);
    INFO("freeze_step " << freeze);
    CHECK(found.variance == counts.variance);
    CHECK(found.moment == counts.moment);
    CHECK(found.local == counts.local);
    CHECK(found.exchange == counts.exchange);
  }
}

TEST_CASE("0/1 Adam takes the steps of its formulas in PyTorch's float64") {
  std::ifstream file(GPTRAIN_SOURCE_ROOT "/tests/golden/zero-one-adam.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  RunConfig config =
      testing::small_config(testing::Family::gpt2,
                            {"batch.global=6", "batch.micro=1", "optimizer.type=zero-one-adam",
                             "optimizer.freeze_step=8", "optimizer.variance_scaler=2", "optimizer.local_scaler=4",
                             "optimizer.local_most=4", "run.steps=20", "checkpoint.every_steps=0"},
                            num_ranks);
  CHECK(config.optimizer.clip_norm == 0);
  CHECK(config.optimizer.beta2 == 0.999);
  CHECK_NOTHROW(run_local_ranks(num_ranks, [&](World& world) { Rank(world, config).check(golden); }));
}

}  // namespace gptrain::zero_one_adam_test
