// AdamW that also keeps an exponential moving average of the weights: with w the weight after the update and t =
// state.updates, this step's included,
//   average += (1 - ema) / (1 - ema^t) (w - average).
// The divisor makes up for the zeros that the average begins with, as in AdamW's moments: after the first update the
// average is the weight, and while t is small against 1 / (1 - ema) it is close to the mean of all weights so far. Of
// weights without masters it takes w before that is rounded to bf16, which is what they are on the average.
#pragma once

#include <cmath>
#include <string_view>

#include "ops/adamw.h"

namespace gptrain {

struct AdamWEma : AdamW {
  static constexpr std::string_view name = "adamw_ema";
  static constexpr size_t num_columns = 3;  // m, v, average
  class Formula;

  double ema = 0;  // above 0, below 1
};

class AdamWEma::Formula {
 public:
  explicit Formula(const AdamWEma& op) : adamw_(op), log_ema_(std::log(op.ema)), one_minus_ema_(1.0 - op.ema) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    adamw_.begin_step(state);
    share_ = static_cast<float>(one_minus_ema_ / -expm1(static_cast<double>(state.updates) * log_ema_));
  }

  GPTRAIN_FORMULA Formula of(const UpdateSegment& segment) const {
    Formula own = *this;
    own.adamw_ = adamw_.of(segment);
    return own;
  }

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& m, float& v, float& average) const {
    const float w = adamw_.updated(gradient, weight, m, v);
    average += share_ * (w - average);
    return w;
  }

 private:
  AdamW::Formula adamw_;
  double log_ema_, one_minus_ema_;
  float share_ = 0;  // of this step's weight in the average
};

}  // namespace gptrain
