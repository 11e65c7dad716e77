#include "model/linear_branch.h"

namespace gptrain::inline model {

void LinearBranch::prepare_weights(const LayerCall& call) {
  in_->prepare_weight(call);
  out_->prepare_weight(call);
}

void LinearBranch::begin_forward(const LayerCall& call, const NormInput& in, const LinearOutput& out) {
  WorkspaceFrame frame(*call.workspace);
  const GemmOperand normed = in_->input_buffer(call, frame);
  norm_.forward(call, in, normed);
  in_->forward(call, normed, out);
}

TensorRows::Ticket LinearBranch::end_forward(const LayerCall& call, const GemmOperand& x, const Output& out) {
  if (out.part.given()) return out_->forward(call, x, {.y = out.part, .sum = out.sum});
  out_->keep_input(call, x);
  return Lane::done;
}

void LinearBranch::recompute(const LayerCall& call, const Matrix& x) {
  {
    WorkspaceFrame frame(*call.workspace);
    const GemmOperand normed = in_->input_buffer(call, frame);
    norm_.forward(call, {.x = x}, normed);
    in_->keep_input(call, normed);
  }
  recompute_core(call);
}

void LinearBranch::backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) {
  TensorRows& tensor = context_.tensor;
  WorkspaceFrame frame(*call.workspace);
  const GemmOperand d_branch = branch_gradient(
      call, gradient.d_out, shares_gradient(context_) ? GemmOperand{} : out_->output_gradient_buffer(call, frame),
      out_->exchanges_pieces());
  TensorRows::Gathering normed;
  // The pieces of d_branch go first: the products of the core wait for them.
  const bool gathers_later = d_branch.own.given();
  if (with_weights && !gathers_later) normed = in_->begin_weight(call, frame);
  const GemmOperand d_in = core_backward(call, d_branch, frame);
  if (with_weights && gathers_later) normed = in_->begin_weight(call, frame);
  const Matrix part = frame.take(context_.compute(), tensor.all_rows(), context_.shape.model.hidden_size);
  in_->backward_input(call, d_in, part);
  const TensorRows::Reduction d_norm = tensor.begin_sum(part, frame);
  if (with_weights) {
    out_->backward_weight(call, out_->begin_weight(call, frame), gradient.d_out.x);
    in_->backward_weight(call, normed);
  }
  norm_.backward_input(call, {tensor.wait(d_norm), gradient.x, gradient.d_out.x, gradient.dx});
  if (with_weights) add_norm_gradients(call);
}

void LinearBranch::backward_weight(const LayerCall& call, const Matrix& d_out) {
  WorkspaceFrame frame(*call.workspace);
  const TensorRows::Gathering normed = in_->begin_weight(call, frame);
  out_->backward_weight(call, out_->begin_weight(call, frame), d_out);
  in_->backward_weight(call, normed);
  add_norm_gradients(call);
}

}  // namespace gptrain::model
