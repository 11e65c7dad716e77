// LARS (You et al., arXiv 1708.03888, algorithm 1): with g the scaled gradient,
//   m = momentum m + lr trust (||w|| / (||g|| + decay ||w||)) (g + decay w),   w -= m,
// with the norms of the tensor that contains w. If either norm is zero, and for norms and biases, m = momentum m + lr
// (g + decay w).
#pragma once

#include <string_view>

#include "ops/tensor_norms.h"

namespace gptrain::inline ops {

struct Lars : TensorUpdate {
  static constexpr std::string_view name = "lars", averaged_name = "lars_ema", norms_name = "lars_norms";
  static constexpr size_t num_columns = 1;  // m
  class Formula;

  double momentum = 0, trust = 0, weight_decay = 0;
};

class Lars::Formula : public TensorFactors {
 public:
  explicit Formula(const Lars& op)
      : TensorFactors(op.weight_decay, op.sums), trust_(op.trust), momentum_(static_cast<float>(op.momentum)) {}

  GPTRAIN_FORMULA void begin_segment(const UpdateSegment& segment) {
    TensorFactors::begin_segment(segment);
    if (segment.decay == 0) return;
    const Norms tensor = norms(segment);
    if (!tensor.are_positive()) return;
    const double length = tensor.measured + static_cast<double>(decay_) * tensor.weights;
    rate_ *= static_cast<float>(trust_ * tensor.weights / length);
  }

  GPTRAIN_FORMULA float measured(float gradient, float, float) const { return gradient * scale_; }

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& m) const {
    m = fused(momentum_, m, rate_ * fused(gradient, scale_, decay_ * weight));
    return weight - m;
  }

 private:
  double trust_;
  float momentum_;
};

}  // namespace gptrain::ops
