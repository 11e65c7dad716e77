// One transformer block: x -> mid = x + attention(norm1(x)) -> output = mid + ffn(norm2(mid)).
#include <cmath>

#include "model/units.h"
#include "ops/fused_product.h"

namespace gptrain {

bool Units::transforms_queries() const { return shape_.model.qk_norm || shape_.model.positions == PositionKind::rope; }

bool Units::activation_is_fused() const {
  return !has_fp8_linears() &&
         fused_activation(shape_.model.activation, shape_.precision.compute, ffn_width(), backend_.target());
}

Units::QueryKeyValue Units::split_qkv(const Matrix& qkv) const {
  return {qkv.column_range(0, q_width()), qkv.column_range(q_width(), kv_width()),
          qkv.column_range(q_width() + kv_width(), kv_width())};
}

Units::QueryKeyValue Units::attention_operands(const UnitCall& call) const {
  QueryKeyValue parts = split_qkv(saved(call, block_fields_.qkv));
  if (shape_.model.qk_norm) {
    // The norm's inputs are needed by its backward, so its outputs have a place of their own.
    const Matrix qk = saved(call, block_fields_.qk);
    parts.q = qk.column_range(0, q_width());
    parts.k = qk.column_range(q_width(), kv_width());
  }
  return parts;
}

Units::NormSite Units::norm1_site(int64_t unit, const UnitCall& call) const {
  const bool has_mean = shape_.model.norm == NormKind::layernorm;
  return {block(unit).norm1, block(unit).norm1_bias, has_mean ? saved(call, block_fields_.mean1) : Matrix{},
          saved(call, block_fields_.rstd1)};
}

Units::NormSite Units::norm2_site(int64_t unit, const UnitCall& call) const {
  const bool has_mean = shape_.model.norm == NormKind::layernorm;
  return {block(unit).norm2, block(unit).norm2_bias, has_mean ? saved(call, block_fields_.mean2) : Matrix{},
          saved(call, block_fields_.rstd2)};
}

void Units::block_forward(int64_t unit, const UnitCall& call) {
  const BlockTensors& t = block(unit);
  prepare_weights(unit, call);
  WorkspaceFrame frame(*call.workspace);
  const Factor ffn_act = linear_input(call, frame, block_fields_.ffn_act, shape_.rows(), ffn_width());
  fill_saved_record(unit, call, ffn_act);
  const Matrix part = frame.take(shape_.precision.compute, shape_.rows(), shape_.model.hidden_size);
  row_linear(call, ffn_act, t.ffn_out, t.ffn_out_bias, part);
  backend_.run(ResidualAdd{.sequence_length = shape_.sequence_length,
                           .x = saved(call, block_fields_.mid),
                           .branch = wait(begin_sum(part, frame)),
                           .dropout = branch_dropout(call, unit, BranchSite::ffn),
                           .x_out = stream(call.output)});
}

void Units::recompute(int64_t unit, const UnitCall& call) {
  prepare_weights(unit, call);
  WorkspaceFrame frame(*call.workspace);
  const Factor ffn_act = linear_input(call, frame, block_fields_.ffn_act, shape_.rows(), ffn_width());
  fill_saved_record(unit, call, ffn_act);
  if (has_fp8_linears()) save_fp8_input(call, ffn_act, block(unit).ffn_out, {});
}

void Units::fill_saved_record(int64_t unit, const UnitCall& call, const Factor& ffn_act) {
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  WorkspaceFrame frame(*call.workspace);
  const Factor norm2 = linear_input(call, frame, f.norm2, stream_rows(), shape_.model.hidden_size);
  {
    WorkspaceFrame inner(*call.workspace);
    const Matrix part = inner.take(shape_.precision.compute, shape_.rows(), shape_.model.hidden_size);
    attention_forward(unit, call, part);
    norm_forward(call, norm2_site(unit, call), stream(call.input), norm2, wait(begin_sum(part, inner)),
                 branch_dropout(call, unit, BranchSite::attention), saved(call, f.mid));
  }
  if (activation_is_fused()) {
    column_linear(call, norm2, t.ffn_in, t.ffn_in_bias, ffn_act.x, saved(call, f.ffn_in));
    return;
  }
  column_linear(call, norm2, t.ffn_in, -1, saved(call, f.ffn_in));
  backend_.run(ActivationForward{.kind = shape_.model.activation,
                                 .x = saved(call, f.ffn_in),
                                 .bias = weight(call, t.ffn_in_bias),
                                 .y = ffn_act.x,
                                 .amax = ffn_act.amax});
}

AttentionMask Units::attention_mask(const UnitCall& call) const {
  return {.window = shape_.model.attention_window,
          .document_starts = call.document_starts,
          .max_documents = shape_.mask_documents ? shape_.max_documents : 0};
}

void Units::attention_forward(int64_t unit, const UnitCall& call, const Matrix& part) {
  const ModelConfig& m = shape_.model;
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const Matrix qkv = saved(call, f.qkv);
  {
    WorkspaceFrame frame(*call.workspace);
    const Factor norm1 = linear_input(call, frame, f.norm1, stream_rows(), m.hidden_size);
    norm_forward(call, norm1_site(unit, call), stream(call.input), norm1);
    column_linear(call, norm1, t.qkv, t.qkv_bias, qkv);
  }
  const QueryKeyValue raw = split_qkv(qkv);
  const QueryKeyValue in = attention_operands(call);
  if (transforms_queries()) {
    backend_.run(QueryKeyForward{.sequence_length = shape_.sequence_length,
                                 .head_size = m.head_size(),
                                 .q = raw.q,
                                 .k = raw.k,
                                 .q_gamma = norm_weight(call, t.q_norm),
                                 .k_gamma = norm_weight(call, t.k_norm),
                                 .eps = m.norm_eps,
                                 .rotary = m.positions == PositionKind::rope,
                                 .theta = m.rope_theta,
                                 .q_out = in.q,
                                 .k_out = in.k,
                                 .rstd = m.qk_norm ? saved(call, f.qk_rstd) : Matrix{}});
  }
  backend_.run(AttentionForward{.batch = shape_.batch,
                                .sequence_length = shape_.sequence_length,
                                .num_heads = num_heads(),
                                .num_kv_heads = num_kv_heads(),
                                .head_size = m.head_size(),
                                .scale = 1 / std::sqrt(static_cast<double>(m.head_size())),
                                .mask = attention_mask(call),
                                .dropout = attention_dropout(call, unit),
                                .q = in.q,
                                .k = in.k,
                                .v = in.v,
                                .o = saved(call, f.attention),
                                .lse = saved(call, f.lse)});
  row_linear(call, {saved(call, f.attention)}, t.out, t.out_bias, part);
}

Units::Factor Units::d_mid(const UnitCall& call) const {
  const bool with_amax = has_fp8_linears() && !branch_gradient_differs();
  return {kept(call, block_fields_.d_mid), with_amax ? kept(call, block_fields_.d_mid_amax) : Matrix{}};
}

Matrix Units::kept_branch_gradient(const UnitCall& call, BranchSite site, const Matrix& dx) const {
  if (!branch_gradient_is_kept()) return dx;
  return kept(call, site == BranchSite::ffn ? block_fields_.d_branch2 : block_fields_.d_branch1);
}

Units::Factor Units::branch_gradient(const UnitCall& call, int64_t unit, BranchSite site, const Factor& dx,
                                     WorkspaceFrame& frame) {
  const Matrix whole = kept_branch_gradient(call, site, dx.x);
  Factor rows = dx;
  if (branch_gradient_differs()) rows.amax = room_for_amax(frame);
  WorkspaceFrame inner(*call.workspace);
  if (branch_gradient_differs()) {
    rows.x = tensor_.sequence ? inner.take(whole.dtype, stream_rows(), whole.cols) : whole;
    backend_.run(BranchBackward{.sequence_length = shape_.sequence_length,
                                .dx = dx.x,
                                .dropout = branch_dropout(call, unit, site),
                                .d_branch = rows.x,
                                .amax = rows.amax});
  }
  wait(begin_gather(rows.x, whole));
  return {whole, rows.amax};
}

void Units::block_backward_input(int64_t unit, const UnitCall& call, bool with_weights) {
  prepare_weights(unit, call);
  ffn_backward_input(unit, call, with_weights);
  attention_backward_input(unit, call, with_weights);
}

void Units::ffn_backward_input(int64_t unit, const UnitCall& call, bool with_weights) {
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const DType c = shape_.precision.compute;
  const Matrix d_output = stream(call.d_output);
  WorkspaceFrame frame(*call.workspace);
  const Factor d_branch = branch_gradient(call, unit, BranchSite::ffn, {d_output, carrier_amax(call.d_output)}, frame);
  Gathering norm2;
  if (with_weights && !has_fp8_linears()) {
    const Matrix rows = saved(call, f.norm2);
    norm2 = begin_gather(rows, room_for_all_rows(frame, rows));
  }
  const Matrix ffn_in = saved(call, f.ffn_in);
  const Factor d_ffn_in = linear_gradient(call, frame, f.d_ffn_in, ffn_in.cols);
  if (activation_is_fused()) {
    backend_.run(LinearBackwardInput{
        .dy = d_branch.x, .w = weight(call, t.ffn_out), .dx = d_ffn_in.x, .pre_activation = ffn_in});
  } else {
    WorkspaceFrame inner(*call.workspace);
    const Matrix d_act = inner.take(c, shape_.rows(), ffn_width());
    input_product(call, d_branch, t.ffn_out, t.ffn_out_bias, d_act);
    backend_.run(ActivationBackward{.kind = shape_.model.activation,
                                    .x = ffn_in,
                                    .bias = weight(call, t.ffn_in_bias),
                                    .dy = d_act,
                                    .dx = d_ffn_in.x,
                                    .amax = d_ffn_in.amax});
  }
  const Matrix part = frame.take(c, shape_.rows(), shape_.model.hidden_size);
  input_product(call, d_ffn_in, t.ffn_in, t.ffn_in_bias, part);
  const Reduction d_norm2 = begin_sum(part, frame);
  if (with_weights) ffn_backward_weight(unit, call, wait(norm2));
  norm_backward(call, norm2_site(unit, call), wait(d_norm2), saved(call, f.mid), d_output, d_mid(call));
}

void Units::attention_backward_input(int64_t unit, const UnitCall& call, bool with_weights) {
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const DType c = shape_.precision.compute;
  WorkspaceFrame frame(*call.workspace);
  const Factor d_branch = branch_gradient(call, unit, BranchSite::attention, d_mid(call), frame);
  Gathering norm1;
  if (with_weights && !has_fp8_linears()) {
    const Matrix rows = saved(call, f.norm1);
    norm1 = begin_gather(rows, room_for_all_rows(frame, rows));
  }
  const Matrix d_qkv = linear_gradient(call, frame, f.d_qkv, q_width() + 2 * kv_width()).x;
  {
    WorkspaceFrame inner(*call.workspace);
    const Matrix d_attention = inner.take(c, shape_.rows(), q_width());
    input_product(call, d_branch, t.out, t.out_bias, d_attention);
    attention_core_backward(unit, call, d_attention, d_qkv);
  }
  const Matrix part = frame.take(c, shape_.rows(), shape_.model.hidden_size);
  input_product(call, {d_qkv}, t.qkv, t.qkv_bias, part);  // no op sees all of it
  const Reduction d_norm1 = begin_sum(part, frame);
  if (with_weights) attention_backward_weight(unit, call, wait(norm1));
  norm_backward(call, norm1_site(unit, call), wait(d_norm1), stream(call.input), d_mid(call).x,
                {stream(call.d_input), carrier_amax(call.d_input)});
}

// From the gradient of attention's output to that of the fused queries, keys and values.
void Units::attention_core_backward(int64_t unit, const UnitCall& call, const Matrix& d_attention,
                                    const Matrix& d_qkv) {
  const ModelConfig& m = shape_.model;
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const QueryKeyValue in = attention_operands(call);
  const QueryKeyValue d_in = split_qkv(d_qkv);
  backend_.run(AttentionBackward{.batch = shape_.batch,
                                 .sequence_length = shape_.sequence_length,
                                 .num_heads = num_heads(),
                                 .num_kv_heads = num_kv_heads(),
                                 .head_size = m.head_size(),
                                 .scale = 1 / std::sqrt(static_cast<double>(m.head_size())),
                                 .mask = attention_mask(call),
                                 .dropout = attention_dropout(call, unit),
                                 .q = in.q,
                                 .k = in.k,
                                 .v = in.v,
                                 .o = saved(call, f.attention),
                                 .lse = saved(call, f.lse),
                                 .d_o = d_attention,
                                 .dq = d_in.q,
                                 .dk = d_in.k,
                                 .dv = d_in.v});
  if (!transforms_queries()) return;
  const QueryKeyValue raw = split_qkv(saved(call, f.qkv));
  backend_.run(QueryKeyBackward{.sequence_length = shape_.sequence_length,
                                .head_size = m.head_size(),
                                .q = m.qk_norm ? raw.q : Matrix{},
                                .k = m.qk_norm ? raw.k : Matrix{},
                                .q_gamma = norm_weight(call, t.q_norm),
                                .k_gamma = norm_weight(call, t.k_norm),
                                .rstd = m.qk_norm ? saved(call, f.qk_rstd) : Matrix{},
                                .rotary = m.positions == PositionKind::rope,
                                .theta = m.rope_theta,
                                .dq = d_in.q,
                                .dk = d_in.k,
                                .d_q_gamma = gradient(call, t.q_norm),
                                .d_k_gamma = gradient(call, t.k_norm),
                                .accumulate = call.accumulate});
}

void Units::ffn_backward_weight(int64_t unit, const UnitCall& call, const Matrix& norm2) {
  const BlockTensors& t = block(unit);
  if (has_fp8_linears()) {
    fp8_backward_weight(call, t.ffn_out);
    fp8_backward_weight(call, t.ffn_in);
    return;
  }
  const Matrix d_branch = kept_branch_gradient(call, BranchSite::ffn, stream(call.d_output));
  weight_product(call, saved(call, block_fields_.ffn_act), d_branch, t.ffn_out, t.ffn_out_bias);
  weight_product(call, norm2, kept(call, block_fields_.d_ffn_in), t.ffn_in, t.ffn_in_bias);
}

void Units::attention_backward_weight(int64_t unit, const UnitCall& call, const Matrix& norm1) {
  const BlockTensors& t = block(unit);
  if (has_fp8_linears()) {
    fp8_backward_weight(call, t.out);
    fp8_backward_weight(call, t.qkv);
    return;
  }
  const Matrix d_branch = kept_branch_gradient(call, BranchSite::attention, kept(call, block_fields_.d_mid));
  weight_product(call, saved(call, block_fields_.attention), d_branch, t.out, t.out_bias);
  weight_product(call, norm1, kept(call, block_fields_.d_qkv), t.qkv, t.qkv_bias);
}

void Units::block_backward_weight(int64_t unit, const UnitCall& call) {
  if (has_fp8_linears()) {
    ffn_backward_weight(unit, call, {});
    attention_backward_weight(unit, call, {});
    return;
  }
  WorkspaceFrame frame(*call.workspace);
  const Matrix rows1 = saved(call, block_fields_.norm1);
  const Matrix rows2 = saved(call, block_fields_.norm2);
  const Gathering norm2 = begin_gather(rows2, room_for_all_rows(frame, rows2));
  const Gathering norm1 = begin_gather(rows1, room_for_all_rows(frame, rows1));
  ffn_backward_weight(unit, call, wait(norm2));
  attention_backward_weight(unit, call, wait(norm1));
}

}  // namespace gptrain
