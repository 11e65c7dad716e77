// The update of 1-bit Adam (arXiv 2102.02888) after its variances are frozen. The gradients' place has the next first
// moment m, which all ranks have found together. With v the variance, that of an AdamW of t = frozen_updates updates,
//   w -= lr (m / (1 - beta1^updates) / (sqrt(v / (1 - beta2^t)) + eps) + decay w).
// Where v is 0, no gradient was ever seen: m becomes 0.
#pragma once

#include <cmath>
#include <string_view>

#include "ops/element_update.h"

namespace gptrain::inline ops {

struct FrozenAdam : ElementUpdate {
  static constexpr std::string_view name = "frozen_adam";
  static constexpr size_t num_columns = 2;  // m, v
  class Formula;

  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  int64_t frozen_updates = 1;
};

class FrozenAdam::Formula : public UpdateFactors {
 public:
  explicit Formula(const FrozenAdam& op)
      : UpdateFactors(op.weight_decay),
        log_beta1_(std::log(op.beta1)),
        inverse_correction2_(
            static_cast<float>(1.0 / -std::expm1(static_cast<double>(op.frozen_updates) * std::log(op.beta2)))),
        eps_(static_cast<float>(op.eps)) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    UpdateFactors::begin_step(state);
    inverse_correction1_ = static_cast<float>(1.0 / -expm1(static_cast<double>(state.updates) * log_beta1_));
  }

  GPTRAIN_FORMULA float updated(float next_m, float weight, float& m, float& v) const {
    m = v == 0 ? 0.0F : next_m;
    const float direction = m * inverse_correction1_ / (sqrtf(v * inverse_correction2_) + eps_);
    return fused(-decay_, weight, fused(-rate_, direction, weight));
  }

 private:
  double log_beta1_;
  float inverse_correction1_ = 0, inverse_correction2_, eps_;
};

}  // namespace gptrain::ops
