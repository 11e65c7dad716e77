#include "model/branch.h"

namespace gptrain {

Branch::Branch(const LayerContext& context, LayerLayout& layout, const Design& design)
    : context_(context),
      layout_(layout),
      layer_(design.layer),
      norm_(context, layout, design.norm_name, design.norm, design.norm_bias),
      site_(design.site) {}

Dropout Branch::dropout(const LayerCall& call) const {
  const StepShape& shape = context_.shape;
  return {shape.training ? shape.model.residual_dropout : 0,
          random_key(shape.seed, RandomUse::branch_dropout, layer_, site_), call.sample_ids,
          context_.tensor.first_row()};
}

bool Branch::gradient_differs(const LayerContext& context) {
  return context.shape.model.residual_dropout > 0 || context.shape.precision.residual != context.compute();
}

bool Branch::shares_gradient(const LayerContext& context) {
  return !gradient_differs(context) && !context.tensor.has_own_rows();
}

Factor Branch::branch_gradient(const LayerCall& call, const Factor& d_out, WorkspaceFrame& frame) {
  if (shares_gradient(context_)) return d_out;
  const Factor whole = out_->output_gradient_room(call, frame);
  Factor rows = d_out;
  WorkspaceFrame inner(*call.workspace);
  if (gradient_differs(context_)) {
    rows.amax = whole.amax;
    rows.x = context_.tensor.has_own_rows() ? inner.take(whole.x.dtype, d_out.x.rows, whole.x.cols) : whole.x;
    context_.backend.run(BranchBackward{.sequence_length = context_.shape.sequence_length,
                                        .dx = d_out.x,
                                        .dropout = dropout(call),
                                        .d_branch = rows.x,
                                        .amax = rows.amax});
  }
  context_.tensor.wait(context_.tensor.begin_gather(rows.x, whole.x));
  return {whole.x, rows.amax};
}

}  // namespace gptrain
