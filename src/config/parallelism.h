// Facts that follow from the sizes of the parallel axes and from the ZeRO stage.
#pragma once

#include <cstdint>

namespace gptrain::inline config {

// Returns the number of ranks that hold one copy of the model. `Sizes` has the sizes of the axes, as ParallelConfig.
template <typename Sizes>
constexpr int64_t ranks_of_model(const Sizes& sizes) {
  return sizes.tensor * sizes.pipeline;
}

// Data that a ZeRO stage cuts into pieces, so that each data rank holds one (arXiv 1910.02054).
constexpr bool cuts_state(int64_t zero) { return zero >= 1; }  // master weights and optimizer state
constexpr bool cuts_gradients(int64_t zero) { return zero >= 2; }
constexpr bool cuts_weights(int64_t zero) { return zero >= 3; }
// Returns whether every rank keeps whole weights and gets the others' pieces of them after each update.
constexpr bool gathers_after_update(int64_t zero) { return cuts_state(zero) && !cuts_weights(zero); }

}  // namespace gptrain::config
