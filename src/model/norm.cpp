#include "model/norm.h"

namespace gptrain::inline model {

Norm::Norm(const LayerContext& context, LayerLayout& layout, const NormTensors& tensors, Save save)
    : context_(context),
      layout_(layout),
      gamma_(tensors.gamma),
      beta_(tensors.beta),
      sums_(context, layout, tensors.name, {gamma_, beta_}) {
  const auto statistics = [&](const char* what) {
    return (layout.*save)({tensors.name + what, DType::f32, 1, context.tensor.own_rows()});
  };
  if (context.shape.model.norm == NormKind::layernorm) mean_ = statistics(".mean");
  rstd_ = statistics(".rstd");
}

Matrix Norm::mean(const LayerCall& call) const {
  return mean_ == LayerLayout::none ? Matrix{} : layout_.at(call, mean_);
}

void Norm::forward(const LayerCall& call, const NormInput& in, const GemmOperand& y) {
  const StepShape& shape = context_.shape;
  context_.backend.run(NormForward{.kind = shape.model.norm,
                                   .eps = shape.model.norm_eps,
                                   .token_rows = shape.token_rows(),
                                   .x = in.x,
                                   .branch = in.branch,
                                   .dropout = in.dropout,
                                   .x_out = in.x_out,
                                   .gamma = gamma_.norm(call),
                                   .beta = beta_.norm(call),
                                   .y = y.x,
                                   .mean = mean(call),
                                   .rstd = layout_.at(call, rstd_),
                                   .amax = y.amax,
                                   .offset = shape.model.norm_offset});
}

void Norm::backward_input(const LayerCall& call, const NormGradient& gradient) {
  context_.backend.run(NormBackward{.kind = context_.shape.model.norm,
                                    .dy = gradient.dy,
                                    .x = gradient.x,
                                    .gamma = gamma_.norm(call),
                                    .mean = mean(call),
                                    .rstd = layout_.at(call, rstd_),
                                    .dx_residual = gradient.dx_residual,
                                    .dx = gradient.dx.x,
                                    .gamma_sums = sums_.at(call, 0),
                                    .beta_sums = sums_.at(call, 1),
                                    .amax = gradient.dx.amax,
                                    .offset = context_.shape.model.norm_offset});
}

}  // namespace gptrain::model
