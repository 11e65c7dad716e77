// LAMB (You et al., arXiv 1904.00962, algorithm 2 with phi(z) = z): with g the scaled gradient, m and v the moments of
// Adam and t = state.updates,
//   r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w,   w -= lr (||w|| / ||r||) r,
// with the norms of the tensor that contains w. If either norm is zero, and for norms and biases, w -= lr r.
#pragma once

#include <string_view>

#include "ops/adamw.h"
#include "ops/tensor_norms.h"

namespace gptrain::inline ops {

struct Lamb : TensorUpdate {
  static constexpr std::string_view name = "lamb", averaged_name = "lamb_ema", norms_name = "lamb_norms";
  static constexpr size_t num_columns = 2;  // m, v
  class Formula;

  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
};

class Lamb::Formula : public TensorFactors {
 public:
  explicit Formula(const Lamb& op) : TensorFactors(op.weight_decay, op.sums), moments_(op.beta1, op.beta2, op.eps) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    TensorFactors::begin_step(state);
    moments_.begin_step(state);
  }

  GPTRAIN_FORMULA void begin_segment(const UpdateSegment& segment) {
    TensorFactors::begin_segment(segment);
    if (segment.decay == 0) return;
    const Norms tensor = norms(segment);
    if (tensor.are_positive()) rate_ *= static_cast<float>(tensor.weights / tensor.measured);
  }

  // RETURNS r. Updates m and v.
  GPTRAIN_FORMULA float step(float gradient, float weight, float& m, float& v) const {
    return fused(decay_, weight, moments_.direction(gradient * scale_, m, v));
  }

  GPTRAIN_FORMULA float measured(float gradient, float weight, float m, float v) const {
    return step(gradient, weight, m, v);
  }

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& m, float& v) const {
    return fused(-rate_, step(gradient, weight, m, v), weight);
  }

 private:
  AdamMoments moments_;
};

}  // namespace gptrain::ops
