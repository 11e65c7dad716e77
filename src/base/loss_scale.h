// Dynamic loss scaling (arXiv 1710.03740, section 3.2): the loss is multiplied by a power of two, so that f16 gradients
// neither vanish nor overflow. The gradient norm and the update divide by it, which is exact.
#pragma once

#include <cstdint>

namespace gptrain::inline base {

constexpr float least_loss_scale = 1;
constexpr float most_loss_scale = 0x1p24F;

struct LossScale {
  float value = 1;
  int64_t good_steps = 0;  // steps in a row without a skip since the value last changed
};

// Returns the scale for the next step: halved if this step was skipped (its gradients overflowed), doubled after
// `window` steps in a row without a skip.
constexpr LossScale next_loss_scale(const LossScale& scale, bool skipped, int64_t window) {
  if (skipped) return {scale.value / 2 < least_loss_scale ? least_loss_scale : scale.value / 2, 0};
  if (scale.good_steps + 1 < window) return {scale.value, scale.good_steps + 1};
  return {scale.value * 2 > most_loss_scale ? most_loss_scale : scale.value * 2, 0};
}

}  // namespace gptrain::base
