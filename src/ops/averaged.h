// An update that also maintains an exponential moving average of the weights: with w the weight after the update and t
// = state.updates, this step's included,
//   average += (1 - ema) / (1 - ema^t) (w - average).
// The divisor corrects for the zeros that the average begins with, as in AdamW's moments: after the first update the
// average is the weight, and while t is small against 1 / (1 - ema) it is close to the mean of all weights so far.
// Without master weights, w is the value before it is rounded stochastically to bf16; the rounded weight's expectation
// is w.
#pragma once

#include <cmath>
#include <string_view>

#include "ops/element_update.h"

namespace gptrain::inline ops {

template <typename Op>
struct Averaged : Op {
  static constexpr std::string_view name = Op::averaged_name;
  static constexpr size_t num_columns = Op::num_columns + 1;  // columns of Op, then the average
  // False: an evaluation of the average saves the f32 weights in the memory of f32 gradients.
  static constexpr bool takes_bf16_gradients = false;
  static_assert(num_columns <= most_update_columns);
  class Formula;

  double ema = 0;  // above 0, below 1
};

template <typename Op>
class Averaged<Op>::Formula {
 public:
  explicit Formula(const Averaged& op) : formula_(op), log_ema_(std::log(op.ema)), one_minus_ema_(1.0 - op.ema) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    formula_.begin_step(state);
    share_ = static_cast<float>(one_minus_ema_ / -expm1(static_cast<double>(state.updates) * log_ema_));
  }

  GPTRAIN_FORMULA void begin_segment(const UpdateSegment& segment) { formula_.begin_segment(segment); }

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& average) const {
    const float w = formula_.updated(gradient, weight);
    average = fused(share_, w - average, average);
    return w;
  }

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& column, float& average) const {
    const float w = formula_.updated(gradient, weight, column);
    average = fused(share_, w - average, average);
    return w;
  }

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& first, float& second, float& average) const {
    const float w = formula_.updated(gradient, weight, first, second);
    average = fused(share_, w - average, average);
    return w;
  }

 private:
  typename Op::Formula formula_;
  double log_ema_, one_minus_ema_;
  float share_ = 0;  // share of this step's weight in the average
};

}  // namespace gptrain::ops
