// Facts that follow from the sizes of the parallel axes.
#pragma once

#include <cstdint>

#include "base/kinds.h"
#include "base/token_rows.h"

namespace gptrain::inline config {

// Returns the number of ranks that work on one sample, and so on one micro-batch. `Sizes` has the sizes of the axes, as
// ParallelConfig.
template <typename Sizes>
constexpr int64_t ranks_of_model(const Sizes& sizes) {
  return sizes.tensor * sizes.context * sizes.pipeline;
}

// Returns the number of ranks that hold the same parameters, except for experts', in a world of `world_size` ranks.
template <typename Sizes>
constexpr int64_t replicas_of_parameters(const Sizes& sizes, int64_t world_size) {
  return world_size / ranks_of_model(sizes) * sizes.context;
}

// Returns the ContextRank of context rank `rank`. `Sizes`: as ParallelConfig.
template <typename Sizes>
constexpr ContextRank context_rank_at(const Sizes& parallel, int64_t rank) {
  return {parallel.context, rank, parallel.context_method == ContextMethod::ring};
}

}  // namespace gptrain::config
