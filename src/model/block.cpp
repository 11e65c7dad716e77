#include <optional>

#include "model/layers.h"

namespace gptrain::inline model {
namespace {

std::optional<RotaryAngles> rotation_of(const ModelConfig& model, int64_t layer) {
  if (!model.rotates(layer)) return std::nullopt;
  return model.rope(layer);
}

}  // namespace

Block::Block(const LayerContext& context, int64_t layer, const UnitTensors& tensors, bool gives_amax)
    : Layer(context, context.shape.saved_part(layer)),
      attention_(make_attention_branch(context, layout_, layer, tensors)),
      ffn_(context.shape.model.ffn(layer).is_routed ? make_routed_branch(context, layout_, layer, tensors)
                                                    : make_ffn_branch(context, layout_, layer, tensors)) {
  const Matrix stream = context.stream(nullptr);
  const Codec codec = input_codec(context);
  mid_ = make_saved_matrix(context, layout_,
                           layout_.save_product_of_attention({"mid", stream.dtype, stream.rows, stream.cols, codec}));
  if (codec != Codec::plain)
    input_ =
        make_saved_matrix(context, layout_, layout_.save({"norm1.x", stream.dtype, stream.rows, stream.cols, codec}));
  if (attention_->weight_reads_output_gradient())
    d_mid_ = layout_.leave({"d_mid", stream.dtype, stream.rows, stream.cols});
  if (ffn_->wants_output_gradient_amax()) layout_.want_output_gradient_amax();

  LayerRecords& records = layout_.finish();
  using enum Operand;
  records.use_of(UnitPass::forward) = {{batch, input}, {output, saved_for_input, saved_for_weight}};
  records.use_of(UnitPass::recompute) = {{batch, input}, {saved_for_input, saved_for_weight}};
  records.use_of(UnitPass::backward_input) = {{batch, saved_for_input, saved_for_weight, d_output},
                                              {gradients, d_input}};
  if (!input_) records.use_of(UnitPass::backward_input).reads.add(input);
  records.use_of(UnitPass::backward_weight) = {{saved_for_weight, gradients}, {}};
  // Projections and a router's jitter depend on sample numbers, which lie in the batch.
  if (context.shape.choices.projection.is_on() || context.shape.model.moe.jitter > 0)
    records.use_of(UnitPass::backward_weight).reads.add(batch);
  // If the branch's gradient equals the stream's, it has no copy, and W reads d_output.
  if (ffn_->weight_reads_output_gradient()) records.use_of(UnitPass::backward_weight).reads.add(d_output);
  if (layout_.saves_part()) {
    records.use_of(UnitPass::forward).writes.add(saved_for_recompute);
    records.use_of(UnitPass::recompute).reads.add(saved_for_recompute);
    records.use_of(UnitPass::backward_input).reads.add(saved_for_recompute);
  }
  if (layout_.saves_attention()) records.use_of(UnitPass::backward_weight).reads.add(saved_for_recompute);
  design_ = {.kind = UnitKind::block,
             .gives_amax = gives_amax,
             .attention = context.shape.model.attention(layer),
             .rotation = rotation_of(context.shape.model, layer),
             .parameters = tensors.all(),
             .records = records,
             .is_routed = context.shape.model.ffn(layer).is_routed};
}

void Block::prepare_weights(const LayerCall& call) {
  attention_->prepare_weights(call);
  ffn_->prepare_weights(call);
}

Matrix Block::run_branches(const LayerCall& call, WorkspaceFrame& frame, const Matrix& mid, bool with_output) {
  prepare_weights(call);
  TensorRows& tensor = context_.tensor;
  const Matrix input = context_.stream(call.input);
  if (input_) input_->keep(call, input);
  const Matrix part = frame.take(context_.compute(), tensor.all_rows(), input.cols);
  const Matrix attention = attention_->forward(call, {.x = input}, part, true, frame);
  // `part` is the FFN's from here on.
  const Matrix ffn =
      ffn_->forward(call, {.x = input, .branch = attention, .dropout = attention_->dropout(call), .x_out = mid}, part,
                    with_output, frame);
  mid_->keep(call, mid);
  return ffn;
}

void Block::forward(const LayerCall& call) {
  WorkspaceFrame frame(*call.workspace);
  const Matrix mid = mid_->buffer(call, frame);
  const Matrix ffn = run_branches(call, frame, mid, true);
  context_.backend.run(ResidualAdd{.token_rows = context_.shape.token_rows(),
                                   .x = mid,
                                   .branch = ffn,
                                   .dropout = ffn_->dropout(call),
                                   .x_out = context_.stream(call.output)});
}

void Block::recompute(const LayerCall& call) {
  WorkspaceFrame frame(*call.workspace);
  if (!layout_.saves_part()) {
    run_branches(call, frame, mid_->buffer(call, frame), false);
    return;
  }
  prepare_weights(call);  // B reads them
  attention_->recompute(call, context_.stream(call.input));
  const Matrix mid = mid_->read(call, frame);
  if (layout_.saves_products()) {
    ffn_->recompute(call, mid);
  } else {
    ffn_->forward(call, {.x = mid}, frame.take(context_.compute(), context_.tensor.all_rows(), mid.cols), false, frame);
  }
}

void Block::backward(const LayerCall& call, BackwardPart part) {
  if (part == BackwardPart::weight) {
    backward_weight(call);
  } else {
    backward_input(call, part == BackwardPart::both);
  }
}

void Block::backward_input(const LayerCall& call, bool with_weights) {
  prepare_weights(call);
  WorkspaceFrame frame(*call.workspace);
  const auto stream_gradient = [&](std::byte* data, bool with_amax) -> GemmOperand {
    return {context_.stream(data), with_amax ? context_.stream_gradient_amax(data) : Matrix{}};
  };
  const Matrix stream = context_.stream(nullptr);
  GemmOperand d_mid = {d_mid_ != LayerLayout::none ? layout_.at(call, d_mid_)
                                                   : frame.take(stream.dtype, stream.rows, stream.cols)};
  if (attention_->wants_output_gradient_amax()) d_mid.amax = frame.take(DType::f32, 1, amax_parts);
  {
    WorkspaceFrame inner(*call.workspace);
    const GemmOperand d_output = stream_gradient(call.d_output, ffn_->wants_output_gradient_amax());
    ffn_->backward_input(call, {d_output, mid_->read(call, inner), d_mid}, with_weights);
  }
  const Matrix x = input_ ? input_->read(call, frame) : context_.stream(call.input);
  attention_->backward_input(call, {d_mid, x, stream_gradient(call.d_input, design_.gives_amax)}, with_weights);
}

void Block::backward_weight(const LayerCall& call) {
  ffn_->backward_weight(call, ffn_->weight_reads_output_gradient() ? context_.stream(call.d_output) : Matrix{});
  attention_->backward_weight(call, d_mid_ != LayerLayout::none ? layout_.at(call, d_mid_) : Matrix{});
}

}  // namespace gptrain::model
