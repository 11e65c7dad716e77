// The attention branch: norm, a fused linear to queries, keys and values, attention over the heads of this rank, and a
// linear back to the residual stream.
#include <algorithm>
#include <cmath>

#include "model/linear_branch.h"
#include "model/saved_matrix.h"

namespace gptrain::inline model {
namespace {

class AttentionBranch final : public LinearBranch {
 public:
  AttentionBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors);

 private:
  void run(const LayerCall& call, const NormInput& in, const Matrix& part) override;
  void recompute_core(const LayerCall& call) override;
  GemmOperand core_backward(const LayerCall& call, const GemmOperand& d_branch, WorkspaceFrame& frame) override;
  void add_norm_gradients(const LayerCall& call) override;

  // Operands of attention, or the column ranges of a fused [N, q + 2 kv] matrix.
  struct QueryKeyValue {
    Matrix q, k, v;
  };

  const ModelConfig& model() const { return context_.shape.model; }
  // RETURN the heads of this rank.
  int64_t num_heads() const { return model().num_heads / context_.tensor.size(); }
  int64_t num_kv_heads() const { return std::max<int64_t>(1, model().num_kv_heads / context_.tensor.size()); }
  int64_t q_width() const { return num_heads() * model().head_size; }
  int64_t kv_width() const { return num_kv_heads() * model().head_size; }
  bool rotates() const { return model().rotates(layer_); }
  bool transforms_queries() const { return model().qk_norm || rotates(); }
  Dropout probability_dropout(const LayerCall& call) const;
  // RETURNS the place of this rank's heads in the statistic of head scores; not given if it is not collected.
  Matrix largest_scores(const LayerCall& call) const;
  AttentionMask mask(const LayerCall& call) const;
  QueryKeyValue split(const Matrix& qkv) const;
  QueryKeyValue operands(const LayerCall& call) const;
  // Computes the operands from the fused matrix by QK-norm and rotary embedding.
  void transform_queries(const LayerCall& call);
  // Computes and saves attention's output. RETURNS it, in `frame` or a record.
  Matrix attend(const LayerCall& call, WorkspaceFrame& frame);
  // Computes d_qkv, the gradient of the fused queries, keys and values, from d_o, the gradient of attention's output o.
  void attend_backward(const LayerCall& call, const Matrix& o, const Matrix& d_o, const Matrix& d_qkv);

  Parameter q_norm_, k_norm_, sinks_;
  GradientSums head_sums_;  // sums for the three
  // The fused matrix, and with QK-norm, whose backward needs its inputs, a second one for its outputs.
  LayerLayout::Field fused_, normed_ = LayerLayout::none, head_rstd_ = LayerLayout::none;
  std::unique_ptr<SavedMatrix> attention_;
  LayerLayout::Field lse_;
};

AttentionBranch::AttentionBranch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                 const UnitTensors& tensors)
    : LinearBranch(context, layout,
                   {.layer = static_cast<uint32_t>(layer),
                    .site = 0,
                    .norm = norm_tensors(tensors, "norm1"),
                    .norm_after = norm_tensors(tensors, "norm1_after")}),
      q_norm_(tensors.find("attention.q_norm.weight")),
      k_norm_(tensors.find("attention.k_norm.weight")),
      sinks_(tensors.find("attention.sinks")),
      head_sums_(context, layout, "attention.heads", {q_norm_, k_norm_, sinks_}) {
  const StepShape& shape = context.shape;
  const DType c = context.compute();
  const int64_t n = shape.rows();
  fused_ = layout.save_product({"attention.qkv", c, n, q_width() + 2 * kv_width()});
  if (model().qk_norm) {
    normed_ = layout.save({"attention.qk_normed", c, n, q_width() + kv_width()});
    head_rstd_ = layout.save({"attention.qk_rstd", DType::f32, n, num_heads() + num_kv_heads()});
  }
  const LayerLayout::Field o = layout.save({"attention.o", c, n, q_width(), input_codec(context)});
  attention_ = make_saved_matrix(context, layout, o);
  lse_ = layout.save({"attention.lse", DType::f32, shape.batch * num_heads(), shape.sequence_length});
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

Dropout AttentionBranch::probability_dropout(const LayerCall& call) const {
  const StepShape& shape = context_.shape;
  return {shape.training ? shape.model.attention_dropout : 0,
          random_key(shape.seed, RandomUse::attention_dropout, layer_), call.sample_ids, 0,
          context_.tensor.rank() * num_heads()};
}

Matrix AttentionBranch::largest_scores(const LayerCall& call) const {
  const Matrix scores = call.statistics.find(head_scores_statistic);
  if (!scores.given()) return {};
  const int64_t first = static_cast<int64_t>(layer_) * model().num_heads + context_.tensor.rank() * num_heads();
  return scores.column_range(first, num_heads());
}

AttentionMask AttentionBranch::mask(const LayerCall& call) const {
  return {.pattern = model().attention(layer_),
          .document_starts = call.document_starts,
          .max_documents = context_.shape.mask_documents ? context_.shape.max_documents : 0};
}

AttentionBranch::QueryKeyValue AttentionBranch::split(const Matrix& qkv) const {
  return {qkv.column_range(0, q_width()), qkv.column_range(q_width(), kv_width()),
          qkv.column_range(q_width() + kv_width(), kv_width())};
}

AttentionBranch::QueryKeyValue AttentionBranch::operands(const LayerCall& call) const {
  QueryKeyValue parts = split(layout_.at(call, fused_));
  if (model().qk_norm) {
    const Matrix normed = layout_.at(call, normed_);
    parts.q = normed.column_range(0, q_width());
    parts.k = normed.column_range(q_width(), kv_width());
  }
  return parts;
}

void AttentionBranch::run(const LayerCall& call, const NormInput& in, const Matrix& part) {
  begin_forward(call, in, {layout_.at(call, fused_)});
  if (transforms_queries()) transform_queries(call);
  WorkspaceFrame frame(*call.workspace);
  end_forward(call, {attend(call, frame)}, part);
}

void AttentionBranch::recompute_core(const LayerCall& call) {
  // Without QK-norm, forward has transformed the `kept` matrix in place.
  if (model().qk_norm) transform_queries(call);
  WorkspaceFrame frame(*call.workspace);
  out_->keep_input(call, {attend(call, frame)});
}

void AttentionBranch::transform_queries(const LayerCall& call) {
  const QueryKeyValue raw = split(layout_.at(call, fused_));
  const QueryKeyValue ready = operands(call);
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

Matrix AttentionBranch::attend(const LayerCall& call, WorkspaceFrame& frame) {
  const StepShape& shape = context_.shape;
  const Matrix o = attention_->buffer(call, frame);
  const QueryKeyValue ready = operands(call);
  context_.backend.run(AttentionForward{.batch = shape.batch,
                                        .sequence_length = shape.sequence_length,
                                        .num_heads = num_heads(),
                                        .num_kv_heads = num_kv_heads(),
                                        .head_size = model().head_size,
                                        .scale = model().score_scale(),
                                        .softcap = model().attention_softcap,
                                        .mask = mask(call),
                                        .dropout = probability_dropout(call),
                                        .q = ready.q,
                                        .k = ready.k,
                                        .v = ready.v,
                                        .o = o,
                                        .lse = layout_.at(call, lse_),
                                        .sinks = sinks_.norm(call),
                                        .largest = largest_scores(call)});
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
  const StepShape& shape = context_.shape;
  const QueryKeyValue ready = operands(call);
  const QueryKeyValue d_in = split(d_qkv);
  context_.backend.run(AttentionBackward{.batch = shape.batch,
                                         .sequence_length = shape.sequence_length,
                                         .num_heads = num_heads(),
                                         .num_kv_heads = num_kv_heads(),
                                         .head_size = model().head_size,
                                         .scale = model().score_scale(),
                                         .softcap = model().attention_softcap,
                                         .mask = mask(call),
                                         .dropout = probability_dropout(call),
                                         .q = ready.q,
                                         .k = ready.k,
                                         .v = ready.v,
                                         .o = o,
                                         .lse = layout_.at(call, lse_),
                                         .d_o = d_o,
                                         .dq = d_in.q,
                                         .dk = d_in.k,
                                         .dv = d_in.v,
                                         .sinks = sinks_.norm(call),
                                         .d_sinks = head_sums_.at(call, 2),
                                         .fixed_bits = shape.deterministic});
  if (!transforms_queries()) return;
  const bool normed = model().qk_norm;
  const QueryKeyValue raw = split(layout_.at(call, fused_));
  context_.backend.run(QueryKeyBackward{.token_rows = shape.token_rows(),
                                        .head_size = model().head_size,
                                        .q = normed ? raw.q : Matrix{},
                                        .k = normed ? raw.k : Matrix{},
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
