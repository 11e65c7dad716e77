// The attention branch: norm, a fused linear to queries, keys and values, attention over the heads of this rank, and a
// linear back to the residual stream.
#include <algorithm>
#include <cmath>

#include "model/branch.h"
#include "model/saved_matrix.h"

namespace gptrain {
namespace {

class AttentionBranch final : public Branch {
 public:
  AttentionBranch(const LayerContext& context, LayerLayout& layout, int64_t layer, const UnitTensors& tensors);

  void prepare_weights(const LayerCall& call) override;
  void forward(const LayerCall& call, const NormInput& in, const Matrix& part) override;
  void recompute(const LayerCall& call, const Matrix& x) override;
  void backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) override;
  void backward_weight(const LayerCall& call, const Matrix& d_out) override;

 private:
  // q, k and v as attention reads them, and the parts of a fused [N, q + 2 kv] matrix.
  struct QueryKeyValue {
    Matrix q, k, v;
  };

  const ModelConfig& model() const { return context_.shape.model; }
  // Heads of this rank.
  int64_t num_heads() const { return model().num_heads / context_.tensor.size(); }
  int64_t num_kv_heads() const { return std::max<int64_t>(1, model().num_kv_heads / context_.tensor.size()); }
  int64_t q_width() const { return num_heads() * model().head_size; }
  int64_t kv_width() const { return num_kv_heads() * model().head_size; }
  double scale() const { return model().attention_scale(); }
  bool transforms_queries() const { return model().qk_norm || model().positions == PositionKind::rope; }
  Dropout probability_dropout(const LayerCall& call) const;
  AttentionMask mask(const LayerCall& call) const;
  QueryKeyValue split(const Matrix& qkv) const;
  QueryKeyValue operands(const LayerCall& call) const;
  // QK-norm and rotary embedding, from the fused matrix to the operands.
  void transform_queries(const LayerCall& call);
  void core_forward(const LayerCall& call, const Matrix& o);
  // From the gradient of attention's output o to that of the fused queries, keys and values.
  void core_backward(const LayerCall& call, const Matrix& o, const Matrix& d_o, const Matrix& d_qkv);
  // The gradients of all norms.
  void add_sums(const LayerCall& call);

  std::unique_ptr<Linear> qkv_;
  Parameter q_norm_, k_norm_;
  GradientSums head_sums_;  // of both
  // The fused matrix; with QK-norm, whose backward needs its inputs, its outputs have a place of their own.
  LayerLayout::Field fused_, normed_ = LayerLayout::none, head_rstd_ = LayerLayout::none;
  std::unique_ptr<SavedMatrix> attention_;
  LayerLayout::Field lse_;
};

AttentionBranch::AttentionBranch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                 const UnitTensors& tensors)
    : Branch(context, layout,
             {.layer = static_cast<uint32_t>(layer),
              .site = 0,
              .norm = tensors.find("norm1.weight"),
              .norm_bias = tensors.find("norm1.bias"),
              .norm_name = "norm1"}),
      q_norm_(tensors.find("attention.q_norm.weight")),
      k_norm_(tensors.find("attention.k_norm.weight")),
      head_sums_(context, layout, "attention.qk_norm", {q_norm_, k_norm_}) {
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
  qkv_ = make_linear(context, layout,
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

AttentionMask AttentionBranch::mask(const LayerCall& call) const {
  return {.window = model().attention_window,
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

void AttentionBranch::prepare_weights(const LayerCall& call) {
  qkv_->prepare_weight(call);
  out_->prepare_weight(call);
}

void AttentionBranch::forward(const LayerCall& call, const NormInput& in, const Matrix& part) {
  {
    WorkspaceFrame frame(*call.workspace);
    const Factor normed = qkv_->input_room(call, frame);
    norm_.forward(call, in, normed);
    qkv_->forward(call, normed, {layout_.at(call, fused_)});
  }
  if (transforms_queries()) transform_queries(call);
  WorkspaceFrame frame(*call.workspace);
  const Matrix attention = attention_->room(call, frame);
  core_forward(call, attention);
  attention_->keep(call, attention);
  if (part.given()) {
    out_->forward(call, {attention}, {part});
  } else {
    out_->keep_input(call, {attention});
  }
}

void AttentionBranch::recompute(const LayerCall& call, const Matrix& x) {
  {
    WorkspaceFrame frame(*call.workspace);
    const Factor normed = qkv_->input_room(call, frame);
    norm_.forward(call, {.x = x}, normed);
    qkv_->keep_input(call, normed);
  }
  // Without QK-norm what is kept has been transformed in its place.
  if (model().qk_norm) transform_queries(call);
  WorkspaceFrame frame(*call.workspace);
  const Matrix attention = attention_->room(call, frame);
  core_forward(call, attention);
  attention_->keep(call, attention);
  out_->keep_input(call, {attention});
}

void AttentionBranch::transform_queries(const LayerCall& call) {
  const QueryKeyValue raw = split(layout_.at(call, fused_));
  const QueryKeyValue ready = operands(call);
  context_.backend.run(QueryKeyForward{.sequence_length = context_.shape.sequence_length,
                                       .head_size = model().head_size,
                                       .q = raw.q,
                                       .k = raw.k,
                                       .q_gamma = q_norm_.norm(call),
                                       .k_gamma = k_norm_.norm(call),
                                       .eps = model().norm_eps,
                                       .rotary = model().positions == PositionKind::rope,
                                       .angles = model().rope(),
                                       .q_out = ready.q,
                                       .k_out = ready.k,
                                       .rstd = model().qk_norm ? layout_.at(call, head_rstd_) : Matrix{}});
}

void AttentionBranch::core_forward(const LayerCall& call, const Matrix& o) {
  const StepShape& shape = context_.shape;
  const QueryKeyValue ready = operands(call);
  context_.backend.run(AttentionForward{.batch = shape.batch,
                                        .sequence_length = shape.sequence_length,
                                        .num_heads = num_heads(),
                                        .num_kv_heads = num_kv_heads(),
                                        .head_size = model().head_size,
                                        .scale = scale(),
                                        .mask = mask(call),
                                        .dropout = probability_dropout(call),
                                        .q = ready.q,
                                        .k = ready.k,
                                        .v = ready.v,
                                        .o = o,
                                        .lse = layout_.at(call, lse_)});
}

void AttentionBranch::backward_input(const LayerCall& call, const BranchGradient& gradient, bool with_weights) {
  TensorRows& tensor = context_.tensor;
  WorkspaceFrame frame(*call.workspace);
  const Factor d_branch = branch_gradient(call, gradient.d_out, frame);
  TensorRows::Gathering normed;
  if (with_weights) normed = qkv_->begin_weight(call, frame);
  const Matrix d_qkv = qkv_->output_gradient_room(call, frame).x;  // no op sees all of it
  {
    WorkspaceFrame inner(*call.workspace);
    const Matrix d_attention = inner.take(context_.compute(), tensor.all_rows(), q_width());
    out_->backward_input(call, d_branch, d_attention);
    core_backward(call, attention_->read(call, inner), d_attention, d_qkv);
  }
  const Matrix part = frame.take(context_.compute(), tensor.all_rows(), model().hidden_size);
  qkv_->backward_input(call, {d_qkv}, part);
  const TensorRows::Reduction d_norm = tensor.begin_sum(part, frame);
  if (with_weights) {
    out_->backward_weight(call, out_->begin_weight(call, frame), gradient.d_out.x);
    qkv_->backward_weight(call, normed);
  }
  norm_.backward_input(call, {tensor.wait(d_norm), gradient.x, gradient.d_out.x, gradient.dx});
  if (with_weights) add_sums(call);
}

void AttentionBranch::core_backward(const LayerCall& call, const Matrix& o, const Matrix& d_o, const Matrix& d_qkv) {
  const StepShape& shape = context_.shape;
  const QueryKeyValue ready = operands(call);
  const QueryKeyValue d_in = split(d_qkv);
  context_.backend.run(AttentionBackward{.batch = shape.batch,
                                         .sequence_length = shape.sequence_length,
                                         .num_heads = num_heads(),
                                         .num_kv_heads = num_kv_heads(),
                                         .head_size = model().head_size,
                                         .scale = scale(),
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
                                         .fixed_bits = shape.deterministic});
  if (!transforms_queries()) return;
  const bool normed = model().qk_norm;
  const QueryKeyValue raw = split(layout_.at(call, fused_));
  context_.backend.run(QueryKeyBackward{.sequence_length = shape.sequence_length,
                                        .head_size = model().head_size,
                                        .q = normed ? raw.q : Matrix{},
                                        .k = normed ? raw.k : Matrix{},
                                        .q_gamma = q_norm_.norm(call),
                                        .k_gamma = k_norm_.norm(call),
                                        .rstd = normed ? layout_.at(call, head_rstd_) : Matrix{},
                                        .rotary = model().positions == PositionKind::rope,
                                        .angles = model().rope(),
                                        .dq = d_in.q,
                                        .dk = d_in.k,
                                        .q_gamma_sums = head_sums_.at(call, 0),
                                        .k_gamma_sums = head_sums_.at(call, 1)});
}

void AttentionBranch::backward_weight(const LayerCall& call, const Matrix& d_out) {
  WorkspaceFrame frame(*call.workspace);
  const TensorRows::Gathering normed = qkv_->begin_weight(call, frame);
  out_->backward_weight(call, out_->begin_weight(call, frame), d_out);
  qkv_->backward_weight(call, normed);
  add_sums(call);
}

void AttentionBranch::add_sums(const LayerCall& call) {
  head_sums_.add(call);
  norm_.backward_weight(call);
}

}  // namespace

std::unique_ptr<Branch> make_attention_branch(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                              const UnitTensors& tensors) {
  return std::make_unique<AttentionBranch>(context, layout, layer, tensors);
}

}  // namespace gptrain
