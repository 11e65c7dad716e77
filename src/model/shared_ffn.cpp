#include "model/shared_ffn.h"

namespace gptrain::inline model {

SharedFfn::SharedFfn(const LayerContext& context, LayerLayout& layout, uint32_t layer, const UnitTensors& tensors,
                     LayerLayout::Field x)
    : context_(context),
      layout_(layout),
      bias_(tensors.find("shared.in.bias")),
      gate_(tensors.find("shared.gate.weight")) {
  const Parameter out = tensors.find("shared.out.weight");
  width_ = out.cols;
  in_ = make_linear(context, layout,
                    {.name = "shared.in",
                     .site = LinearSite::ffn_in,
                     .layer = layer,
                     .weight = tensors.find("shared.in.weight"),
                     .bias = bias_,
                     .row_parallel = false,
                     .saved_input = x});
  out_ = make_linear(context, layout,
                     {.name = "shared.out",
                      .site = LinearSite::ffn_out,
                      .layer = layer,
                      .weight = out,
                      .bias = tensors.find("shared.out.bias"),
                      .row_parallel = true,
                      .gradient_is_shared = true});
  const int64_t hidden_width = is_gated(kind()) ? 2 * width_ : width_;
  hidden_ = layout.save_product({"shared.hidden", context.compute(), context.shape.rows(), hidden_width});
  if (!has_gate()) return;
  gate_logits_ = layout.save_product({"shared.gate", DType::f32, context.shape.rows(), 1});
  d_gate_ = layout.leave({"shared.d_gate", DType::f32, context.shape.rows(), 1});
}

void SharedFfn::multiply_gate(const LayerCall& call, const Matrix& rows) const {
  context_.backend.run(LinearForward{
      .x = rows, .w = gate_.norm(call), .bias = {}, .y = layout_.at(call, gate_logits_), .true_out = counted_gates()});
}

SharedFfn::Gates SharedFfn::gates(const LayerCall& call, WorkspaceFrame& frame) const {
  const Gates gates{frame.take(DType::f32, 1, context_.shape.rows()), frame.take(DType::i32, 1, 2)};
  context_.backend.run(
      GateRows{.logits = layout_.at(call, gate_logits_), .weights = gates.weights, .offsets = gates.offsets});
  return gates;
}

void SharedFfn::forward(const LayerCall& call, const Matrix& normed, const Matrix& part) {
  in_->forward(call, {normed}, {.y = layout_.at(call, hidden_), .with_bias = false});
  activate(call, part);
}

void SharedFfn::activate(const LayerCall& call, const Matrix& part) {
  WorkspaceFrame frame(*call.workspace);
  const GemmOperand activated = out_->input_buffer(call, frame);
  const Matrix hidden = layout_.at(call, hidden_);
  if (has_gate()) {
    const Gates of_rows = gates(call, frame);
    context_.backend.run(ExpertActivationForward{
        .kind = kind(), .x = hidden, .weights = of_rows.weights, .offsets = of_rows.offsets, .y = activated.x});
  } else {
    context_.backend.run(
        ActivationForward{.kind = kind(), .x = hidden, .bias = context_.weight(call, bias_), .y = activated.x});
  }
  if (part.given()) {
    out_->forward(call, activated, {part});
  } else {
    out_->keep_input(call, activated);
  }
}

void SharedFfn::backward_input(const LayerCall& call, const Matrix& d_branch, const Matrix& part) {
  WorkspaceFrame frame(*call.workspace);
  const GemmOperand d_hidden = in_->output_gradient_buffer(call, frame);
  const Matrix d_activated = frame.take(context_.compute(), d_branch.rows, width_), hidden = layout_.at(call, hidden_);
  out_->backward_input(call, {d_branch}, d_activated);
  if (has_gate()) {
    const Gates of_rows = gates(call, frame);
    const Matrix d_weights = frame.take(DType::f32, 1, d_branch.rows);
    context_.backend.run(ExpertActivationBackward{.kind = kind(),
                                                  .x = hidden,
                                                  .weights = of_rows.weights,
                                                  .offsets = of_rows.offsets,
                                                  .dy = d_activated,
                                                  .dx = d_hidden.x,
                                                  .d_weights = d_weights});
    context_.backend.run(
        GateRowsBackward{.weights = of_rows.weights, .d_weights = d_weights, .d_logits = layout_.at(call, d_gate_)});
  } else {
    context_.backend.run(ActivationBackward{
        .kind = kind(), .x = hidden, .bias = context_.weight(call, bias_), .dy = d_activated, .dx = d_hidden.x});
  }
  in_->backward_input(call, d_hidden, part);
}

void SharedFfn::add_gate_gradient(const LayerCall& call, const Matrix& d_rows) const {
  WorkspaceFrame frame(*call.workspace);
  const Matrix of_gate = frame.take(DType::f32, d_rows.rows, d_rows.cols);
  context_.backend.run(LinearBackwardInput{
      .dy = layout_.at(call, d_gate_), .w = gate_.norm(call), .dx = of_gate, .true_out = counted_gates()});
  context_.backend.run(Add{.from = of_gate, .to = d_rows});
}

void SharedFfn::backward_weight(const LayerCall& call, const Matrix& d_branch) {
  WorkspaceFrame frame(*call.workspace);
  const TensorRows::Gathering normed = in_->begin_weight(call, frame);
  out_->backward_weight(call, out_->begin_weight(call, frame), d_branch);
  in_->backward_weight(call, normed);
}

void SharedFfn::gate_weight_gradient(const LayerCall& call, const Matrix& rows) const {
  context_.backend.run(LinearBackwardWeight{.x = rows,
                                            .dy = layout_.at(call, d_gate_),
                                            .dw = gate_.gradient(call),
                                            .d_bias = {},
                                            .accumulate = call.accumulate,
                                            .true_out = counted_gates()});
}

}  // namespace gptrain::model
