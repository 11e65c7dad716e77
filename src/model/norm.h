// A norm of the residual stream: layernorm or RMS norm, as configured.
#pragma once

#include <string>

#include "model/gradient_sums.h"

namespace gptrain::inline model {

// Input of a norm: x, or if branch is given x_out = x + dropout(branch), which the norm writes (see the op
// NormForward).
struct NormInput {
  Matrix x;
  Matrix branch = {};
  Dropout dropout = {};
  Matrix x_out = {};
};

// Operands of backward: dx = dx_residual + the norm's gradient for dy. `dx` may alias dx_residual, and has its amax if
// the next reader wants it.
struct NormGradient {
  Matrix dy;
  Matrix x;  // input of the forward norm
  Matrix dx_residual;
  GemmOperand dx;
};

struct NormTensors {
  std::string name;
  Parameter gamma;
  Parameter beta;  // not given if the model has none
};

class Norm {
 public:
  using Save = LayerLayout::Field (LayerLayout::*)(const SavedTensor&);
  // Declares its statistics by `save`, and B's sums for W. REQUIRES: context and layout outlive it.
  Norm(const LayerContext& context, LayerLayout& layout, const NormTensors& tensors, Save save = &LayerLayout::save);

  void forward(const LayerCall& call, const NormInput& in, const GemmOperand& y);
  void backward_input(const LayerCall& call, const NormGradient& gradient);
  void backward_weight(const LayerCall& call) { sums_.add(call); }

 private:
  Matrix mean(const LayerCall& call) const;

  const LayerContext& context_;
  const LayerLayout& layout_;
  const Parameter gamma_, beta_;
  LayerLayout::Field mean_ = LayerLayout::none, rstd_;
  GradientSums sums_;  // sums for gamma and beta
};

}  // namespace gptrain::model
