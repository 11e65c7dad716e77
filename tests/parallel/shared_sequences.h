// Runs of ranks that share sequences, compared with one rank.
#pragma once

#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"

namespace gptrain::testing {

// Returns a config with dropout whose 20 tokens and four heads can be shared.
inline RunConfig shared_config(Family family, int64_t world_size, const Overrides& model, const Overrides& layout) {
  Overrides overrides = {"model.num_heads=4", "model.hidden_size=40", "model.sequence_length=20", "optimizer.eps=1e-3",
                         "model.dropout=0.1"};
  overrides.insert(overrides.end(), model.begin(), model.end());
  overrides.insert(overrides.end(), layout.begin(), layout.end());
  return small_config(family, overrides, world_size);
}

struct SharedLayout {
  int64_t world_size;
  Overrides overrides;
};

// Checks that the ranks of each layout compute one rank's first moments, from a state after ten steps.
inline void check_shared_layouts(Family family, const Overrides& model, const std::vector<SharedLayout>& layouts) {
  const RunConfig alone = shared_config(family, 1, model, {});
  const GlobalState start = train_on_ranks(alone, 1, 10).state;
  const Outcome one = train_on_ranks(alone, 1, 1, &start, 1000);
  for (const SharedLayout& layout : layouts) {
    const RunConfig config = shared_config(family, layout.world_size, model, layout.overrides);
    const Difference d =
        difference(make_spec(config.model), one, train_on_ranks(config, layout.world_size, 1, &start, 1000));
    INFO(layout.overrides.front() << ", " << layout.world_size << " ranks, moment " << d.first_moment << " of "
                                  << d.moment_of << ", loss " << d.loss << ", norm " << d.norm);
    CHECK(d.small());
  }
}

}  // namespace gptrain::testing
