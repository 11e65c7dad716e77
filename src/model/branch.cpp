#include "model/branch.h"

namespace gptrain::inline model {

Branch::Branch(const LayerContext& context, LayerLayout& layout, const Design& design)
    : context_(context),
      layout_(layout),
      layer_(design.layer),
      norm_(context, layout, design.norm),
      site_(design.site) {
  if (!design.norm_after.gamma.given()) return;
  after_ = std::make_unique<Norm>(context, layout, design.norm_after, design.save_after);
  const SavedTensor x{design.norm_after.name + ".x", context.compute(), context.tensor.own_rows(),
                      context.shape.model.hidden_size, input_codec(context)};
  after_x_ = make_saved_matrix(context, layout, (layout.*design.save_after)(x));
}

Dropout Branch::dropout(const LayerCall& call) const {
  const StepShape& shape = context_.shape;
  return {shape.training ? shape.model.residual_dropout : 0,
          random_key(shape.seed, RandomUse::branch_dropout, layer_, site_), call.sample_ids,
          context_.tensor.first_row()};
}

bool Branch::stream_differs(const LayerContext& context) {
  return context.shape.model.residual_dropout > 0 || context.shape.precision.residual != context.compute();
}

bool Branch::gradient_differs(const LayerContext& context) {
  return context.shape.model.norm_after || stream_differs(context);
}

bool Branch::shares_gradient(const LayerContext& context) {
  return !gradient_differs(context) && !context.tensor.has_own_rows();
}

Matrix Branch::forward(const LayerCall& call, const NormInput& in, const Matrix& part, bool with_output,
                       WorkspaceFrame& frame) {
  TensorRows& tensor = context_.tensor;
  if (!after_) {
    Output out;
    if (with_output) out.part = part;
    if (with_output && sums_in_pieces()) out.sum = tensor.buffer_for_own_rows(frame, part);
    const TensorRows::Ticket ticket = run(call, in, out);
    if (!with_output) return {};
    return tensor.wait(out.sum.given() ? TensorRows::Reduction{out.sum, ticket} : tensor.begin_sum(part, frame));
  }
  // Recompute runs the last linear, too, since the norm behind it saves its input.
  const Matrix x = after_x_->buffer(call, frame);
  const Matrix own_part = tensor.has_own_rows() ? part : x;
  const TensorRows::Ticket ticket = run(call, in, {own_part, sums_in_pieces() ? x : Matrix{}});
  sums_in_pieces() ? tensor.wait(ticket) : tensor.sum_into(own_part, x);
  after_x_->keep(call, x);
  const Matrix y = part.row_range(0, x.rows);
  after_->forward(call, {.x = x}, {y});
  return y;
}

GemmOperand Branch::branch_gradient(const LayerCall& call, const GemmOperand& d_out, const GemmOperand& whole,
                                    bool in_pieces) {
  if (shares_gradient(context_)) return d_out;
  TensorRows& tensor = context_.tensor;
  GemmOperand rows = d_out;
  WorkspaceFrame inner(*call.workspace);
  // Two ranks gather in one collective, in which both send at the same time; broadcasts would take turns.
  in_pieces = in_pieces && tensor.has_own_rows() && tensor.size() > 2;
  const Matrix own = tensor.has_own_rows() ? whole.x.row_range(tensor.first_row(), d_out.x.rows) : whole.x;
  if (gradient_differs(context_)) {
    rows.amax = whole.amax;
    rows.x = tensor.has_own_rows() && !in_pieces ? inner.take(whole.x.dtype, d_out.x.rows, whole.x.cols) : own;
    differentiate_output(call, d_out.x, rows);
  } else if (in_pieces) {
    context_.backend.run(Cast{.from = d_out.x, .to = own});
  }
  if (in_pieces) return {whole.x, rows.amax, own};
  tensor.wait(tensor.begin_gather(rows.x, whole.x));
  return {whole.x, rows.amax};
}

void Branch::differentiate_output(const LayerCall& call, const Matrix& d_out, const GemmOperand& to) {
  WorkspaceFrame frame(*call.workspace);
  Matrix d_normed = d_out;
  if (stream_differs(context_)) {
    d_normed = after_ ? frame.take(to.x.dtype, to.x.rows, to.x.cols) : to.x;
    context_.backend.run(BranchBackward{.token_rows = context_.shape.token_rows(),
                                        .dx = d_out,
                                        .dropout = dropout(call),
                                        .d_branch = d_normed,
                                        .amax = after_ ? Matrix{} : to.amax});
  }
  if (after_)
    after_->backward_input(call, {.dy = d_normed, .x = after_x_->read(call, frame), .dx_residual = {}, .dx = to});
}

void Branch::add_norm_gradients(const LayerCall& call) {
  norm_.backward_weight(call);
  if (after_) after_->backward_weight(call);
}

}  // namespace gptrain::model
