// Dynamic loss scaling (arXiv 1710.03740, section 3.2): gradients are made of the loss times a power of two, so that in
// f16 they neither vanish nor overflow; their global norm and the update divide it out again, which is exact.
#pragma once

#include <cstdint>

namespace gptrain {

constexpr float least_loss_scale = 1;
constexpr float most_loss_scale = 0x1p24F;

struct LossScale {
  float value = 1;
  int64_t good_steps = 0;  // in a row, not skipped, since the value last changed
};

// What the scale becomes after a step: halved where the step was skipped, as its gradients had overflown, and doubled
// after `window` steps in a row that were not.
constexpr LossScale next_loss_scale(const LossScale& scale, bool skipped, int64_t window) {
  if (skipped) return {scale.value / 2 < least_loss_scale ? least_loss_scale : scale.value / 2, 0};
  if (scale.good_steps + 1 < window) return {scale.value, scale.good_steps + 1};
  return {scale.value * 2 > most_loss_scale ? most_loss_scale : scale.value * 2, 0};
}

}  // namespace gptrain
