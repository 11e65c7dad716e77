// One transformer block: x -> mid = x + attention(norm1(x)) -> output = mid + ffn(norm2(mid)).
#include <cmath>

#include "model/units.h"

namespace gptrain {

bool Units::transforms_queries() const { return shape_.model.qk_norm || shape_.model.positions == PositionKind::rope; }

Units::QueryKeyValue Units::split_qkv(const Matrix& qkv) const {
  const int64_t h = shape_.model.hidden_size;
  const int64_t kv = shape_.model.kv_size();
  return {qkv.column_range(0, h), qkv.column_range(h, kv), qkv.column_range(h + kv, kv)};
}

Units::QueryKeyValue Units::attention_operands(const UnitCall& call) const {
  QueryKeyValue parts = split_qkv(saved(call, block_fields_.qkv));
  if (shape_.model.qk_norm) {
    // The norm's inputs are needed by its backward, so its outputs have a place of their own.
    const Matrix qk = saved(call, block_fields_.qk);
    parts.q = qk.column_range(0, shape_.model.hidden_size);
    parts.k = qk.column_range(shape_.model.hidden_size, shape_.model.kv_size());
  }
  return parts;
}

void Units::block_forward(int64_t unit, const UnitCall& call) {
  const BlockTensors& t = block(unit);
  WorkspaceFrame frame(*call.workspace);
  const Matrix branch = frame.take(shape_.precision.compute, shape_.rows(), shape_.model.hidden_size);
  fill_saved_record(unit, call, branch);
  backend_.run(LinearForward{
      .x = saved(call, block_fields_.ffn_act), .w = weight(t.ffn_out), .bias = weight(t.ffn_out_bias), .y = branch});
  backend_.run(ResidualAdd{.sequence_length = shape_.sequence_length,
                           .x = saved(call, block_fields_.mid),
                           .branch = branch,
                           .dropout = branch_dropout(call, unit, BranchSite::ffn),
                           .x_out = stream(call.output)});
}

void Units::recompute(int64_t unit, const UnitCall& call) {
  WorkspaceFrame frame(*call.workspace);
  fill_saved_record(unit, call, frame.take(shape_.precision.compute, shape_.rows(), shape_.model.hidden_size));
}

void Units::fill_saved_record(int64_t unit, const UnitCall& call, const Matrix& branch) {
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const bool has_mean = shape_.model.norm == NormKind::layernorm;
  const Matrix x = stream(call.input);
  norm_forward(x, {}, {}, {}, t.norm1, t.norm1_bias, saved(call, f.norm1), has_mean ? saved(call, f.mean1) : Matrix{},
               saved(call, f.rstd1));
  attention_forward(unit, call, branch);
  norm_forward(x, branch, branch_dropout(call, unit, BranchSite::attention), saved(call, f.mid), t.norm2, t.norm2_bias,
               saved(call, f.norm2), has_mean ? saved(call, f.mean2) : Matrix{}, saved(call, f.rstd2));
  backend_.run(LinearForward{.x = saved(call, f.norm2), .w = weight(t.ffn_in), .bias = {}, .y = saved(call, f.ffn_in)});
  backend_.run(ActivationForward{.kind = shape_.model.activation,
                                 .x = saved(call, f.ffn_in),
                                 .bias = weight(t.ffn_in_bias),
                                 .y = saved(call, f.ffn_act)});
}

void Units::attention_forward(int64_t unit, const UnitCall& call, const Matrix& branch) {
  const ModelConfig& m = shape_.model;
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const Matrix qkv = saved(call, f.qkv);
  backend_.run(LinearForward{.x = saved(call, f.norm1), .w = weight(t.qkv), .bias = weight(t.qkv_bias), .y = qkv});
  const QueryKeyValue raw = split_qkv(qkv);
  const QueryKeyValue in = attention_operands(call);
  if (transforms_queries()) {
    backend_.run(QueryKeyForward{.sequence_length = shape_.sequence_length,
                                 .head_size = m.head_size(),
                                 .q = raw.q,
                                 .k = raw.k,
                                 .q_gamma = norm_weight(t.q_norm),
                                 .k_gamma = norm_weight(t.k_norm),
                                 .eps = m.norm_eps,
                                 .rotary = m.positions == PositionKind::rope,
                                 .theta = m.rope_theta,
                                 .q_out = in.q,
                                 .k_out = in.k,
                                 .rstd = m.qk_norm ? saved(call, f.qk_rstd) : Matrix{}});
  }
  backend_.run(AttentionForward{.batch = shape_.batch,
                                .sequence_length = shape_.sequence_length,
                                .num_heads = m.num_heads,
                                .num_kv_heads = m.num_kv_heads,
                                .head_size = m.head_size(),
                                .scale = 1 / std::sqrt(static_cast<double>(m.head_size())),
                                .mask = {},
                                .dropout = attention_dropout(call, unit),
                                .q = in.q,
                                .k = in.k,
                                .v = in.v,
                                .o = saved(call, f.attention),
                                .lse = saved(call, f.lse)});
  backend_.run(
      LinearForward{.x = saved(call, f.attention), .w = weight(t.out), .bias = weight(t.out_bias), .y = branch});
}

Matrix Units::branch_gradient(const UnitCall& call, int64_t unit, BranchSite site, const Matrix& dx) {
  if (!branch_gradient_differs()) return dx;
  const Matrix d_branch = kept(call, site == BranchSite::ffn ? block_fields_.d_branch2 : block_fields_.d_branch1);
  backend_.run(BranchBackward{.sequence_length = shape_.sequence_length,
                              .dx = dx,
                              .dropout = branch_dropout(call, unit, site),
                              .d_branch = d_branch});
  return d_branch;
}

void Units::block_backward_input(int64_t unit, const UnitCall& call) {
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const bool has_mean = shape_.model.norm == NormKind::layernorm;
  ffn_backward_input(unit, call);
  const Matrix d_mid = kept(call, f.d_mid);
  attention_backward_input(unit, call, branch_gradient(call, unit, BranchSite::attention, d_mid));

  WorkspaceFrame frame(*call.workspace);
  const Matrix d_norm1 = frame.take(shape_.precision.compute, shape_.rows(), shape_.model.hidden_size);
  backend_.run(LinearBackwardInput{.dy = kept(call, f.d_qkv), .w = weight(t.qkv), .dx = d_norm1});
  norm_backward(d_norm1, stream(call.input), t.norm1, t.norm1_bias, has_mean ? saved(call, f.mean1) : Matrix{},
                saved(call, f.rstd1), d_mid, stream(call.d_input), call.accumulate);
}

void Units::ffn_backward_input(int64_t unit, const UnitCall& call) {
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const DType c = shape_.precision.compute;
  const Matrix d_output = stream(call.d_output);
  const Matrix d_branch = branch_gradient(call, unit, BranchSite::ffn, d_output);
  {
    WorkspaceFrame frame(*call.workspace);
    const Matrix d_act = frame.take(c, shape_.rows(), shape_.model.ffn_hidden_size);
    backend_.run(LinearBackwardInput{.dy = d_branch, .w = weight(t.ffn_out), .dx = d_act});
    backend_.run(ActivationBackward{.kind = shape_.model.activation,
                                    .x = saved(call, f.ffn_in),
                                    .bias = weight(t.ffn_in_bias),
                                    .dy = d_act,
                                    .dx = kept(call, f.d_ffn_in)});
  }
  WorkspaceFrame frame(*call.workspace);
  const Matrix d_norm2 = frame.take(c, shape_.rows(), shape_.model.hidden_size);
  backend_.run(LinearBackwardInput{.dy = kept(call, f.d_ffn_in), .w = weight(t.ffn_in), .dx = d_norm2});
  const bool has_mean = shape_.model.norm == NormKind::layernorm;
  norm_backward(d_norm2, saved(call, f.mid), t.norm2, t.norm2_bias, has_mean ? saved(call, f.mean2) : Matrix{},
                saved(call, f.rstd2), d_output, kept(call, f.d_mid), call.accumulate);
}

void Units::attention_backward_input(int64_t unit, const UnitCall& call, const Matrix& d_branch) {
  const ModelConfig& m = shape_.model;
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  WorkspaceFrame frame(*call.workspace);
  const Matrix d_attention = frame.take(shape_.precision.compute, shape_.rows(), m.hidden_size);
  backend_.run(LinearBackwardInput{.dy = d_branch, .w = weight(t.out), .dx = d_attention});
  const QueryKeyValue in = attention_operands(call);
  const QueryKeyValue d_in = split_qkv(kept(call, f.d_qkv));
  backend_.run(AttentionBackward{.batch = shape_.batch,
                                 .sequence_length = shape_.sequence_length,
                                 .num_heads = m.num_heads,
                                 .num_kv_heads = m.num_kv_heads,
                                 .head_size = m.head_size(),
                                 .scale = 1 / std::sqrt(static_cast<double>(m.head_size())),
                                 .mask = {},
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
                                .q_gamma = norm_weight(t.q_norm),
                                .k_gamma = norm_weight(t.k_norm),
                                .rstd = m.qk_norm ? saved(call, f.qk_rstd) : Matrix{},
                                .rotary = m.positions == PositionKind::rope,
                                .theta = m.rope_theta,
                                .dq = d_in.q,
                                .dk = d_in.k,
                                .d_q_gamma = gradient(t.q_norm),
                                .d_k_gamma = gradient(t.k_norm),
                                .accumulate = call.accumulate});
}

void Units::block_backward_weight(int64_t unit, const UnitCall& call) {
  const BlockTensors& t = block(unit);
  const BlockFields& f = block_fields_;
  const bool differs = branch_gradient_differs();
  const Matrix d_ffn_branch = differs ? kept(call, f.d_branch2) : stream(call.d_output);
  const Matrix d_attention_branch = differs ? kept(call, f.d_branch1) : kept(call, f.d_mid);
  const auto product = [&](const Matrix& x, const Matrix& dy, int64_t w, int64_t bias) {
    backend_.run(LinearBackwardWeight{
        .x = x, .dy = dy, .dw = gradient(w), .d_bias = gradient(bias), .accumulate = call.accumulate});
  };
  product(saved(call, f.ffn_act), d_ffn_branch, t.ffn_out, t.ffn_out_bias);
  product(saved(call, f.norm2), kept(call, f.d_ffn_in), t.ffn_in, t.ffn_in_bias);
  product(saved(call, f.attention), d_attention_branch, t.out, t.out_bias);
  product(saved(call, f.norm1), kept(call, f.d_qkv), t.qkv, t.qkv_bias);
}

}  // namespace gptrain
