// AdamW (arXiv 1711.05101): with g the scaled gradient and t = state.updates, this step's included,
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
//   w -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w).
#pragma once

#include <cmath>
#include <string_view>

#include "ops/element_update.h"

namespace gptrain::inline ops {

struct AdamW : ElementUpdate {
  static constexpr std::string_view name = "adamw", averaged_name = "adamw_ema";
  static constexpr size_t num_columns = 2;  // m, v
  static constexpr bool takes_bf16_gradients = true;
  class Formula;

  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};

// Adam's two moments and the step direction computed from them.
class AdamMoments {
 public:
  AdamMoments(double beta1, double beta2, double eps)
      : log_beta1_(std::log(beta1)),
        log_beta2_(std::log(beta2)),
        beta1_(static_cast<float>(beta1)),
        one_minus_beta1_(static_cast<float>(1.0 - beta1)),
        beta2_(static_cast<float>(beta2)),
        one_minus_beta2_(static_cast<float>(1.0 - beta2)),
        eps_(static_cast<float>(eps)) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    const auto updates = static_cast<double>(state.updates);
    // 1 - beta^updates without the cancellation that small exponents and betas near 1 would bring.
    const auto correction1 = static_cast<float>(-expm1(updates * log_beta1_));
    const auto correction2 = static_cast<float>(-expm1(updates * log_beta2_));
    inverse_correction1_ = static_cast<float>(1.0 / static_cast<double>(correction1));
    inverse_correction2_ = static_cast<float>(1.0 / static_cast<double>(correction2));
  }

  // RETURNS the direction for the scaled gradient g. Updates m and v.
  GPTRAIN_FORMULA float direction(float g, float& m, float& v) const {
    const float next_m = fused(beta1_, m, one_minus_beta1_ * g);
    const float next_v = fused(beta2_, v, one_minus_beta2_ * g * g);
    m = next_m;
    v = next_v;
    return next_m * inverse_correction1_ / (sqrtf(next_v * inverse_correction2_) + eps_);
  }

 private:
  double log_beta1_, log_beta2_;
  float beta1_, one_minus_beta1_, beta2_, one_minus_beta2_, eps_;
  float inverse_correction1_ = 0, inverse_correction2_ = 0;
};

class AdamW::Formula : public UpdateFactors {
 public:
  explicit Formula(const AdamW& op) : UpdateFactors(op.weight_decay), moments_(op.beta1, op.beta2, op.eps) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    UpdateFactors::begin_step(state);
    moments_.begin_step(state);
  }

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& m, float& v) const {
    return fused(-decay_, weight, fused(-rate_, moments_.direction(gradient * scale_, m, v), weight));
  }

 private:
  AdamMoments moments_;
};

}  // namespace gptrain::ops
