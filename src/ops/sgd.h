// SGD with momentum (Sutskever et al. 2013, as PyTorch writes it) and decoupled decay (arXiv 1711.05101): with g the
// scaled gradient, m = momentum m + g; w -= lr (m + decay w), and with Nesterov's look ahead g + momentum m in the place
// of m.
#pragma once

#include <string_view>

#include "ops/element_update.h"

namespace gptrain {

struct Sgd : ElementUpdate {
  static constexpr std::string_view name = "sgd";
  static constexpr size_t num_columns = 1;  // m
  class Formula;

  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
};

class Sgd::Formula {
 public:
  explicit Formula(const Sgd& op)
      : weight_decay_(op.weight_decay), momentum_(static_cast<float>(op.momentum)), nesterov_(op.nesterov) {}

  GPTRAIN_FORMULA void begin_step(const StepState& state) {
    scale_ = state.gradient_scale;
    rate_ = state.learning_rate;
  }

  GPTRAIN_FORMULA Formula of(const UpdateSegment& segment) const {
    Formula own = *this;
    own.rate_ = rate_ * segment.rate_factor;
    own.decay_ = segment.decay != 0 ? static_cast<float>(static_cast<double>(own.rate_) * weight_decay_) : 0.0F;
    return own;
  }

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& m) const {
    const float g = gradient * scale_;
    m = momentum_ * m + g;
    return weight - rate_ * (nesterov_ ? g + momentum_ * m : m) - decay_ * weight;
  }

 private:
  double weight_decay_;
  float momentum_;
  bool nesterov_;
  float scale_ = 0;
  float rate_ = 0;
  float decay_ = 0;  // learning rate times weight decay
};

}  // namespace gptrain
