// SGD with momentum (Sutskever et al. 2013, in PyTorch's form) and decoupled decay (arXiv 1711.05101): with g the
// scaled gradient, m = momentum m + g; w -= lr (m + decay w). With Nesterov momentum, g + momentum m replaces m in the
// second formula.
#pragma once

#include <string_view>

#include "ops/element_update.h"

namespace gptrain::inline ops {

struct Sgd : ElementUpdate {
  static constexpr std::string_view name = "sgd", averaged_name = "sgd_ema";
  static constexpr size_t num_columns = 1;  // m
  static constexpr bool takes_bf16_gradients = true;
  class Formula;

  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
};

class Sgd::Formula : public UpdateFactors {
 public:
  explicit Formula(const Sgd& op)
      : UpdateFactors(op.weight_decay), momentum_(static_cast<float>(op.momentum)), nesterov_(op.nesterov) {}

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& m) const {
    m = fused(gradient, scale_, momentum_ * m);
    const float step = nesterov_ ? fused(gradient, scale_, momentum_ * m) : m;
    return fused(-decay_, weight, fused(-rate_, step, weight));
  }

 private:
  float momentum_;
  bool nesterov_;
};

}  // namespace gptrain::ops
