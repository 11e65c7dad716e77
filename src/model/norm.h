// A norm of the residual stream: layernorm or RMS norm, as the model has it.
#pragma once

#include <string>

#include "model/gradient_sums.h"

namespace gptrain {

// What is normed: x, or x_out = x + dropout(branch), which is written (see the op NormForward).
struct NormInput {
  Matrix x;
  Matrix branch = {};
  Dropout dropout = {};
  Matrix x_out = {};
};

// dx = dx_residual + what reaches x through the norm. `dx`, with its amax where the next reader wants that, may be
// where dx_residual is.
struct NormGradient {
  Matrix dy;
  Matrix x;  // what was normed
  Matrix dx_residual;
  Factor dx;
};

class Norm {
 public:
  // Declares its statistics, and what B leaves for W. Context and layout outlive it; beta may be not given.
  Norm(const LayerContext& context, LayerLayout& layout, const std::string& name, const Parameter& gamma,
       const Parameter& beta);

  void forward(const LayerCall& call, const NormInput& in, const Factor& y);
  void backward_input(const LayerCall& call, const NormGradient& gradient);
  void backward_weight(const LayerCall& call) { sums_.add(call); }

 private:
  Matrix mean(const LayerCall& call) const;

  const LayerContext& context_;
  const LayerLayout& layout_;
  const Parameter gamma_, beta_;
  LayerLayout::Field mean_ = LayerLayout::none, rstd_;
  GradientSums sums_;  // of gamma and beta
};

}  // namespace gptrain
