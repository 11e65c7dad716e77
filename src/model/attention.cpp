// The attention branch: norm, a fused linear to queries, keys and values, attention over the heads of this rank, and a
// linear back to the residual stream.
#include "model/attention_core.h"
#include "model/linear_branch.h"
#include "model/saved_matrix.h"

namespace gptrain::inline model {
namespace {

class AttentionBranch final : public LinearBranch {
 public:
  AttentionBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors);

 private:
  TensorRows::Ticket run(const LayerCall& call, const NormInput& in, const Output& out) override;
  void recompute_core(const LayerCall& call) override;
  GemmOperand core_backward(const LayerCall& call, const GemmOperand& d_branch, WorkspaceFrame& frame) override;
  void add_norm_gradients(const LayerCall& call) override;

  const ModelConfig& model() const { return context_.shape.model; }
  int64_t num_heads() const { return tensor_rank_heads(context_).queries; }
  int64_t num_kv_heads() const { return tensor_rank_heads(context_).keys; }
  int64_t q_width() const { return num_heads() * model().head_size; }
  int64_t kv_width() const { return num_kv_heads() * model().head_size; }
  bool rotates() const { return model().rotates(layer_); }
  bool transforms_queries() const { return model().qk_norm || rotates(); }
  QueryKeyValue split(const Matrix& qkv) const;
  // RETURNS the fused matrix, in its record or in `frame`.
  Matrix fused(const LayerCall& call, WorkspaceFrame& frame) const;
  // RETURNS attention's operands, in `qkv`, the fused matrix, or with QK-norm partly in a record or `frame`.
  QueryKeyValue operands(const LayerCall& call, const Matrix& qkv, WorkspaceFrame& frame) const;
  // Computes the operands from the fused matrix by QK-norm and rotary embedding.
  void transform_queries(const LayerCall& call, const QueryKeyValue& raw, const QueryKeyValue& ready);
  // Computes and saves attention's output. RETURNS it, in `frame` or a record.
  Matrix attend(const LayerCall& call, const QueryKeyValue& ready, WorkspaceFrame& frame);
  // Computes d_qkv, the gradient of the fused queries, keys and values, from d_o, the gradient of attention's output o.
  void attend_backward(const LayerCall& call, const Matrix& o, const Matrix& d_o, const Matrix& d_qkv);

  Parameter q_norm_, k_norm_, sinks_;
  GradientSums head_sums_;  // sums for the three
  // The fused matrix, and with QK-norm, whose backward needs its inputs, a second one for its outputs; none: the matrix
  // is not saved.
  LayerLayout::Field fused_ = LayerLayout::none, normed_ = LayerLayout::none, head_rstd_ = LayerLayout::none;
  std::unique_ptr<SavedMatrix> attention_;
  std::unique_ptr<AttentionCore> core_;
};

AttentionBranch::AttentionBranch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                 const UnitTensors& tensors)
    : LinearBranch(context, layout,
                   {.layer = static_cast<uint32_t>(layer),
                    .site = 0,
                    .norm = norm_tensors(tensors, "norm1"),
                    .norm_after = norm_tensors(tensors, "norm1_after"),
                    .save_after = &LayerLayout::save_product_of_attention}),
      q_norm_(tensors.find("attention.q_norm.weight")),
      k_norm_(tensors.find("attention.k_norm.weight")),
      sinks_(tensors.find("attention.sinks")),
      head_sums_(context, layout, "attention.heads", {q_norm_, k_norm_, summed_sinks(context, sinks_)}) {
  const StepShape& shape = context.shape;
  const DType c = context.compute();
  const int64_t n = shape.rows();
  // A core that exchanges tokens for heads saves the operands itself.
  const bool saves_operands = !context.context.is_split() || context.context.is_ring();
  if (saves_operands || model().qk_norm || layout.saves_products())
    fused_ = layout.save_product_of_attention({"attention.qkv", c, n, q_width() + 2 * kv_width()});
  if (model().qk_norm) {
    if (saves_operands) normed_ = layout.save_attention({"attention.qk_normed", c, n, q_width() + kv_width()});
    head_rstd_ = layout.save_attention({"attention.qk_rstd", DType::f32, n, num_heads() + num_kv_heads()});
  }
  const LayerLayout::Field o = layout.save_attention({"attention.o", c, n, q_width(), input_codec(context)});
  attention_ = make_saved_matrix(context, layout, o);
  core_ =
      make_attention_core(context, layout, {.layer = layer, .sinks = sinks_, .head_sums = head_sums_, .sinks_sum = 2});
  in_ = make_linear(context, layout,
                    {.name = "attention.qkv",
                     .site = LinearSite::qkv,
                     .layer = layer_,
                     .weight = tensors.find("attention.qkv.weight"),
                     .bias = tensors.find("attention.qkv.bias"),
                     .row_parallel = false});
  out_ = make_linear(context, layout,
                     {.name = "attention.out",
                      .site = LinearSite::attention_out,
                      .layer = layer_,
                      .weight = tensors.find("attention.out.weight"),
                      .bias = tensors.find("attention.out.bias"),
                      .row_parallel = true,
                      .saved_input = o,
                      .gradient_is_shared = shares_gradient(context)});
}

QueryKeyValue AttentionBranch::split(const Matrix& qkv) const {
  return {qkv.column_range(0, q_width()), qkv.column_range(q_width(), kv_width()),
          qkv.column_range(q_width() + kv_width(), kv_width())};
}

Matrix AttentionBranch::fused(const LayerCall& call, WorkspaceFrame& frame) const {
  if (fused_ != LayerLayout::none) return layout_.at(call, fused_);
  return frame.take(context_.compute(), context_.shape.rows(), q_width() + 2 * kv_width());
}

QueryKeyValue AttentionBranch::operands(const LayerCall& call, const Matrix& qkv, WorkspaceFrame& frame) const {
  QueryKeyValue parts = split(qkv);
  if (model().qk_norm) {
    const Matrix normed = normed_ != LayerLayout::none
                              ? layout_.at(call, normed_)
                              : frame.take(context_.compute(), qkv.rows, q_width() + kv_width());
    parts.q = normed.column_range(0, q_width());
    parts.k = normed.column_range(q_width(), kv_width());
  }
  return parts;
}

TensorRows::Ticket AttentionBranch::run(const LayerCall& call, const NormInput& in, const Output& out) {
  WorkspaceFrame frame(*call.workspace);
  const Matrix qkv = fused(call, frame);
  begin_forward(call, in, {qkv});
  const QueryKeyValue ready = operands(call, qkv, frame);
  if (transforms_queries()) transform_queries(call, split(qkv), ready);
  return end_forward(call, {attend(call, ready, frame)}, out);
}

void AttentionBranch::recompute_core(const LayerCall& call) {
  WorkspaceFrame frame(*call.workspace);
  if (layout_.saves_attention()) return out_->keep_input(call, {attention_->read(call, frame)});
  const Matrix qkv = fused(call, frame);
  const QueryKeyValue ready = operands(call, qkv, frame);
  // Without QK-norm, forward has transformed the `saved_for_recompute` matrix in place.
  if (model().qk_norm) transform_queries(call, split(qkv), ready);
  out_->keep_input(call, {attend(call, ready, frame)});
}

void AttentionBranch::transform_queries(const LayerCall& call, const QueryKeyValue& raw, const QueryKeyValue& ready) {
  context_.backend.run(QueryKeyForward{.token_rows = context_.shape.token_rows(),
                                       .head_size = model().head_size,
                                       .q = raw.q,
                                       .k = raw.k,
                                       .q_gamma = q_norm_.norm(call),
                                       .k_gamma = k_norm_.norm(call),
                                       .eps = model().norm_eps,
                                       .rotary = rotates(),
                                       .angles = model().rope(layer_),
                                       .q_out = ready.q,
                                       .k_out = ready.k,
                                       .rstd = model().qk_norm ? layout_.at(call, head_rstd_) : Matrix{},
                                       .offset = model().norm_offset});
}

Matrix AttentionBranch::attend(const LayerCall& call, const QueryKeyValue& ready, WorkspaceFrame& frame) {
  const Matrix o = attention_->buffer(call, frame);
  core_->forward(call, ready, o);
  attention_->keep(call, o);
  return o;
}

GemmOperand AttentionBranch::core_backward(const LayerCall& call, const GemmOperand& d_branch, WorkspaceFrame& frame) {
  const Matrix d_qkv = in_->output_gradient_buffer(call, frame).x;  // without its amax, as no op writes all of it
  WorkspaceFrame inner(*call.workspace);
  const Matrix d_attention = inner.take(context_.compute(), context_.tensor.all_rows(), q_width());
  out_->backward_input(call, d_branch, d_attention);
  attend_backward(call, attention_->read(call, inner), d_attention, d_qkv);
  return {d_qkv};
}

void AttentionBranch::attend_backward(const LayerCall& call, const Matrix& o, const Matrix& d_o, const Matrix& d_qkv) {
  const QueryKeyValue d_in = split(d_qkv);
  {
    WorkspaceFrame frame(*call.workspace);
    const QueryKeyValue ready =
        core_->reads_operands() ? operands(call, layout_.at(call, fused_), frame) : QueryKeyValue{};
    core_->backward(call, ready, o, d_o, d_in);
  }
  if (!transforms_queries()) return;
  const bool normed = model().qk_norm;
  const QueryKeyValue raw = normed ? split(layout_.at(call, fused_)) : QueryKeyValue{};
  context_.backend.run(QueryKeyBackward{.token_rows = context_.shape.token_rows(),
                                        .head_size = model().head_size,
                                        .q = raw.q,
                                        .k = raw.k,
                                        .q_gamma = q_norm_.norm(call),
                                        .k_gamma = k_norm_.norm(call),
                                        .rstd = normed ? layout_.at(call, head_rstd_) : Matrix{},
                                        .rotary = rotates(),
                                        .angles = model().rope(layer_),
                                        .dq = d_in.q,
                                        .dk = d_in.k,
                                        .q_gamma_sums = head_sums_.at(call, 0),
                                        .k_gamma_sums = head_sums_.at(call, 1),
                                        .offset = model().norm_offset});
}

void AttentionBranch::add_norm_gradients(const LayerCall& call) {
  head_sums_.add(call);
  Branch::add_norm_gradients(call);
}

}  // namespace

std::unique_ptr<Branch> make_attention_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                              const UnitTensors& tensors) {
  return std::make_unique<AttentionBranch>(context, layout, layer, tensors);
}

}  // namespace gptrain::model
