#include <algorithm>

#include "model/layers.h"

namespace gptrain::inline model {

Head::Head(const LayerContext& context, const UnitTensors& tensors, const Parameter& matrix, bool gives_amax)
    : Layer(context),
      norm_(context, layout_,
            {.name = "norm", .gamma = tensors.find("norm.weight"), .beta = tensors.find("norm.bias")}),
      matrix_(matrix) {
  const int64_t own = context.tensor.own_rows();
  const int64_t h = context.shape.model.hidden_size;
  normed_ = layout_.save({"normed", context.compute(), own, h});
  d_normed_ = layout_.leave({"d_normed", context.compute(), own, h});
  LayerRecords& records = layout_.finish();
  using enum Operand;
  records.use_of(UnitPass::forward) = {{input}, {saved_for_input}};
  records.use_of(UnitPass::recompute) = records.use_of(UnitPass::forward);
  records.use_of(UnitPass::loss) = {{batch, saved_for_input}, {gradients}};
  records.use_of(UnitPass::evaluate) = {{batch, saved_for_input}, {}};
  records.use_of(UnitPass::backward_input) = {{input, saved_for_input, gradients}, {gradients, d_input}};
  records.use_of(UnitPass::backward_weight) = {{gradients}, {}};
  design_ = {.kind = UnitKind::head, .gives_amax = gives_amax, .parameters = tensors.all(), .records = records};
  design_.parameters.push_back(matrix);
}

int64_t Head::true_tokens() const {
  return std::clamp<int64_t>(context_.shape.model.vocab_size - first_token(), 0, matrix_.rows);
}

void Head::forward(const LayerCall& call) {
  norm_.forward(call, {.x = context_.stream(call.input)}, {layout_.at(call, normed_)});
}

void Head::recompute(const LayerCall& call) { forward(call); }

void Head::loss(const LayerCall& call) {
  const Matrix d_normed = layout_.at(call, d_normed_);
  TensorRows& tensor = context_.tensor;
  WorkspaceFrame frame(*call.workspace);
  const Matrix part = tensor.has_own_rows() ? frame.take(d_normed.dtype, tensor.all_rows(), d_normed.cols) : d_normed;
  sum_losses(call, part);
  tensor.sum_into(part, d_normed);
}

void Head::evaluate(const LayerCall& call) { sum_losses(call, {}); }

void Head::sum_losses(const LayerCall& call, const Matrix& d_norm) {
  TensorRows& tensor = context_.tensor;
  Backend& backend = context_.backend;
  const Matrix w = matrix(call);
  const int64_t n = context_.shape.rows();
  const int64_t chunk = std::min(context_.shape.choices.loss_chunk_tokens, n);
  WorkspaceFrame frame(*call.workspace);
  const Matrix own_rows = layout_.at(call, normed_);
  const Matrix norm = tensor.wait(tensor.begin_gather(own_rows, tensor.buffer_for_all_rows(frame, own_rows)));
  const Matrix losses = frame.take(DType::f32, 1, n);
  const Matrix all_logits = frame.take(context_.compute(), chunk, w.rows);
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t rows = std::min(chunk, n - first);
    const Matrix logits = all_logits.row_range(0, rows);
    const Matrix x = norm.row_range(first, rows);
    backend.run(LinearForward{.x = x, .w = w, .bias = {}, .y = logits, .true_out = true_tokens()});
    cross_entropy(call, first, logits, d_norm.given(), losses.column_range(first, rows));
    if (!d_norm.given()) continue;
    backend.run(
        LinearBackwardInput{.dy = logits, .w = w, .dx = d_norm.row_range(first, rows), .true_out = true_tokens()});
    backend.run(LinearBackwardWeight{.x = x,
                                     .dy = logits,
                                     .dw = matrix_.in(call.head_matrix.gradients, DType::f32),
                                     .d_bias = {},
                                     .accumulate = call.accumulate || first > 0,
                                     .true_out = true_tokens()});
  }
  backend.run(AccumulateLoss{.losses = losses, .state = call.state});
}

void Head::cross_entropy(const LayerCall& call, int64_t first, const Matrix& logits, bool with_gradient,
                         const Matrix& losses) {
  TensorRows& tensor = context_.tensor;
  const ModelConfig& model = context_.shape.model;
  WorkspaceFrame frame(*call.workspace);
  const int32_t* targets = call.targets + first;
  Matrix all;
  if (tensor.is_split()) {
    const Matrix own = frame.take(DType::f32, 3, logits.rows);
    all = frame.take(DType::f32, 3 * tensor.size(), logits.rows);
    context_.backend.run(CrossEntropyStatistics{.vocab_size = model.vocab_size,
                                                .first_token = first_token(),
                                                .targets = targets,
                                                .logits = logits,
                                                .statistics = own,
                                                .softcap = model.logit_softcap});
    tensor.gather_all(own, all);
  }
  context_.backend.run(CrossEntropy{.vocab_size = model.vocab_size,
                                    .z_loss = model.z_loss,
                                    .targets = targets,
                                    .state = call.state,
                                    .logits = logits,
                                    .d_logits = with_gradient ? logits : Matrix{},
                                    .losses = losses,
                                    .statistics = all,
                                    .first_token = first_token(),
                                    .softcap = model.logit_softcap});
}

void Head::logits(const LayerCall& call, int64_t row, const Matrix& out) {
  context_.backend.run(LinearForward{.x = layout_.at(call, normed_).row_range(row, 1),
                                     .w = matrix(call),
                                     .bias = {},
                                     .y = out,
                                     .true_out = true_tokens()});
}

void Head::backward(const LayerCall& call, BackwardPart part) {
  if (part != BackwardPart::weight) backward_input(call);
  if (part != BackwardPart::input) norm_.backward_weight(call);
}

void Head::backward_input(const LayerCall& call) {
  const Matrix d_input = context_.stream(call.d_input);
  norm_.backward_input(call,
                       {.dy = layout_.at(call, d_normed_),
                        .x = context_.stream(call.input),
                        .dx_residual = {},
                        .dx = {d_input, design_.gives_amax ? context_.stream_gradient_amax(call.d_input) : Matrix{}}});
}

}  // namespace gptrain::model
