#include "model/layers.h"

namespace gptrain::inline model {

Embedding::Embedding(const LayerContext& context, const UnitTensors& tensors)
    : Layer(context), tokens_(tensors.find("token")), positions_(tensors.find("position")) {
  LayerRecords& records = layout_.finish();
  records.use_of(UnitPass::forward) = {{Operand::batch}, {Operand::output}};
  records.use_of(UnitPass::backward_weight) = {{Operand::batch, Operand::d_output}, {}};
  design_ = {.kind = UnitKind::embedding, .parameters = tensors.all(), .records = records};
}

Dropout Embedding::dropout(const LayerCall& call) const {
  const StepShape& shape = context_.shape;
  return {shape.training ? shape.model.residual_dropout : 0, random_key(shape.seed, RandomUse::embedding_dropout),
          call.sample_ids};
}

// Every rank looks up the tokens of its slice of the vocabulary; rank 0 adds the positions.
void Embedding::forward(const LayerCall& call) {
  TensorRows& tensor = context_.tensor;
  WorkspaceFrame frame(*call.workspace);
  const Matrix out = context_.stream(call.output);
  const Matrix part = tensor.has_own_rows() ? frame.take(out.dtype, tensor.all_rows(), out.cols) : out;
  context_.backend.run(
      EmbeddingForward{.tokens = call.tokens,
                       .token_rows = context_.shape.token_rows(),
                       .token_table = context_.weight(call, tokens_),
                       .position_table = tensor.rank() == 0 ? context_.weight(call, positions_) : Matrix{},
                       .dropout = dropout(call),
                       .x = part,
                       .first_token = first_token(),
                       .num_tokens = num_tokens(),
                       .token_scale = context_.shape.model.embedding_scale});
  tensor.sum_into(part, out);
}

// The embedding saves nothing.
void Embedding::recompute(const LayerCall&) {}

void Embedding::backward(const LayerCall& call, BackwardPart part) {
  if (part == BackwardPart::input) return;  // tokens have no gradient
  WorkspaceFrame frame(*call.workspace);
  const Matrix rows = context_.stream(call.d_output);
  TensorRows& tensor = context_.tensor;
  const Matrix dx = tensor.wait(tensor.begin_gather(rows, tensor.buffer_for_all_rows(frame, rows)));
  context_.backend.run(EmbeddingBackward{.tokens = call.tokens,
                                         .token_rows = context_.shape.token_rows(),
                                         .dx = dx,
                                         .dropout = dropout(call),
                                         .d_token_table = tokens_.gradient(call),
                                         .d_position_table = positions_.gradient(call),
                                         .accumulate_token = call.accumulate || call.table_begun,
                                         .accumulate_position = call.accumulate,
                                         .first_token = first_token(),
                                         .num_tokens = num_tokens(),
                                         .token_scale = context_.shape.model.embedding_scale});
}

}  // namespace gptrain::model
