// Lion (Chen et al., arXiv 2302.06675): with g the scaled gradient, w -= lr (sign(beta1 m + (1 - beta1) g) + decay w),
// then m = beta2 m + (1 - beta2) g. The sign of zero is zero.
#pragma once

#include <string_view>

#include "ops/element_update.h"

namespace gptrain::inline ops {

struct Lion : ElementUpdate {
  static constexpr std::string_view name = "lion", averaged_name = "lion_ema";
  static constexpr size_t num_columns = 1;  // m
  static constexpr bool takes_bf16_gradients = true;
  class Formula;

  double beta1 = 0, beta2 = 0, weight_decay = 0;
};

class Lion::Formula : public UpdateFactors {
 public:
  explicit Formula(const Lion& op)
      : UpdateFactors(op.weight_decay),
        beta1_(static_cast<float>(op.beta1)),
        one_minus_beta1_(static_cast<float>(1.0 - op.beta1)),
        beta2_(static_cast<float>(op.beta2)),
        one_minus_beta2_(static_cast<float>(1.0 - op.beta2)) {}

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& m) const {
    const float g = gradient * scale_;
    const float direction = fused(beta1_, m, one_minus_beta1_ * g);
    m = fused(beta2_, m, one_minus_beta2_ * g);
    const float step = direction > 0 ? rate_ : direction < 0 ? -rate_ : 0.0F;
    return fused(-decay_, weight, weight - step);
  }

 private:
  float beta1_, one_minus_beta1_, beta2_, one_minus_beta2_;
};

}  // namespace gptrain::ops
