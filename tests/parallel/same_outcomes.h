// Comparisons of two outcomes that must be equal.
#pragma once

#include <cmath>
#include <memory>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"

namespace gptrain::testing {

// Requires that the weights and optimizer state in `a` have the same bits in `b`, and that no replica of either
// differs.
inline void require_bits_of(const Outcome& a, const Outcome& b) {
  REQUIRE(a.torn + b.torn == "");
  for (const auto& [name, values] : a.state) {
    INFO(name);
    REQUIRE(same_bits(values, b.state.at(name)));
  }
}

// Requires equal losses and norms as well, and no more state in `b`.
inline void require_same(const Outcome& a, const Outcome& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  REQUIRE(a.state.size() == b.state.size());
  require_bits_of(a, b);
}

// Trains for three steps, of which the second is skipped, since its loss is not finite. The outcome has the losses and
// norms of the others.
inline Outcome train_past_a_skip(const RunConfig& config, int64_t world_size, const Wrapping& wrapping = {}) {
  const auto make = [&](const RankContext& rank) { return std::make_unique<RandomBatches>(config, 0, rank.groups); };
  const int64_t all = config.batch.global * config.model.sequence_length;
  Outcome outcome = train_on_batches(config, world_size, 3, nullptr,
                                     {make, [all](int step) { return step == 1 ? 0 : all; }}, wrapping);
  CHECK(!std::isfinite(outcome.losses[1]));
  outcome.losses.erase(outcome.losses.begin() + 1);
  outcome.norms.erase(outcome.norms.begin() + 1);
  return outcome;
}

}  // namespace gptrain::testing
