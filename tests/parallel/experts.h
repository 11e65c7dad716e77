// Small models with experts, trained over ranks that are threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <mutex>
#include <string>
#include <vector>

#include "catch.h"
#include "changed_ops.h"
#include "layouts.h"
#include "model/statistics.h"
#include "model_fixture.h"
#include "wrappers.h"

namespace gptrain::testing {

struct ExpertLayout {
  int64_t ranks;
  Overrides overrides;
};

inline RunConfig config_of_experts(const std::string& moe, const ExpertLayout& layout, const Overrides& more = {}) {
  Overrides overrides = {
      "model.hidden_size=32",     "model.num_heads=4", "model.num_kv_heads=2", "model.ffn_hidden_size=64",
      "model.sequence_length=16", "batch.global=8",    "optimizer.eps=1e-3",   moe};
  overrides.insert(overrides.end(), more.begin(), more.end());
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  return small_config(Family::llama, overrides, layout.ranks);
}

struct TrainedExperts {
  Outcome outcome;
  std::vector<double> routing;  // the statistic after the last step
};

// Trains, and keeps the statistic of routing of a rank that has all layers.
inline TrainedExperts train_experts(const RunConfig& config, int64_t ranks, int steps,
                                    const GlobalState* start = nullptr, Wrapping wrapping = {}) {
  TrainedExperts trained;
  std::mutex mutex;
  wrapping.after = [&, then = wrapping.after](RankContext& rank) {
    if (then) then(rank);
    const Matrix routing = rank.step.statistics().find(routing_statistic);
    const std::lock_guard lock(mutex);
    if (rank.groups.sample_rank() != 0 || !routing.given()) return;
    trained.routing.resize(static_cast<size_t>(routing.cols));
    rank.step.backend().download(trained.routing.data(), routing.data, routing.bytes());
  };
  trained.outcome = train_on_ranks(config, ranks, steps, start, start == nullptr ? 0 : 1000, wrapping);
  return trained;
}

// Checks that the tokens of each expert are equal, and the sums behind them nearly.
inline void check_routing(const MoeConfig& moe, const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  REQUIRE(!a.empty());
  const auto of_layer = static_cast<size_t>(num_routing_sums(moe.experts));
  for (size_t i = 0; i < a.size(); ++i) {
    if (i % of_layer < static_cast<size_t>(moe.experts)) {
      CHECK(a[i] == b[i]);
    } else {
      CHECK(std::abs(a[i] - b[i]) <= 1e-5 * std::abs(b[i]));
    }
  }
}

// Trains one step on ranks, and checks that moments, losses and routing are those of one rank. RETURNS the ranks'
// results.
inline TrainedExperts check_as_one_rank(const RunConfig& config, const ExpertLayout& layout, const GlobalState& start,
                                        const TrainedExperts& one, const Wrapping& wrapping = {}) {
  TrainedExperts many = train_experts(config, layout.ranks, 1, &start, wrapping);
  const Difference d = difference(make_spec(config.model), one.outcome, many.outcome);
  INFO(fmt::format("{}: moment {} of {}, loss {}, torn {}", fmt::join(layout.overrides, " "), d.first_moment,
                   d.moment_of, d.loss, d.torn));
  CHECK(d.small());
  check_routing(config.model.moe, many.routing, one.routing);
  return many;
}

}  // namespace gptrain::testing
