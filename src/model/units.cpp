#include "model/units.h"

#include <fmt/format.h>

namespace gptrain {

Units::Units(const StepShape& shape, const ModelSpec& spec, const std::vector<TensorShard>& shards,
             const ParameterLayout& layout, const TensorParallel& tensor, Backend& backend)
    : shape_(shape), layout_(layout), tensor_(tensor), backend_(backend) {
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    tensor_shapes_.push_back(shards[i].shape);
    int64_t counted = 0;
    for (const ShardBox& box : shards[i].boxes)
      counted += box.owned || spec.tensors[i].split == Split::none ? box.shape[0] : 0;
    model_rows_.push_back(counted);
    tensor_offsets_.push_back(layout.segments[i].offset -
                              layout.units[static_cast<size_t>(spec.tensors[i].unit)].offset);
  }
  find_tensors(spec);
  declare_records();
}

void Units::find_tensors(const ModelSpec& spec) {
  token_table_ = spec.find("embedding.token");
  position_table_ = spec.find("embedding.position");
  final_norm_ = spec.find("head.norm.weight");
  final_norm_bias_ = spec.find("head.norm.bias");
  head_weight_ = spec.find("head.weight");
  for (int64_t layer = 0; layer < shape_.model.num_layers; ++layer) {
    // Only among the block's own tensors: a search through the whole list for each would be quadratic in the depth.
    const UnitRange& range = layout_.units[static_cast<size_t>(layer) + 1];
    const auto find = [&](const char* name) -> int64_t {
      const std::string full = fmt::format("blocks.{}.{}", layer, name);
      for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
        if (spec.tensors[static_cast<size_t>(i)].name == full) return i;
      }
      return -1;
    };
    blocks_.push_back({.norm1 = find("norm1.weight"),
                       .norm1_bias = find("norm1.bias"),
                       .qkv = find("attention.qkv.weight"),
                       .qkv_bias = find("attention.qkv.bias"),
                       .q_norm = find("attention.q_norm.weight"),
                       .k_norm = find("attention.k_norm.weight"),
                       .out = find("attention.out.weight"),
                       .out_bias = find("attention.out.bias"),
                       .norm2 = find("norm2.weight"),
                       .norm2_bias = find("norm2.bias"),
                       .ffn_in = find("ffn.in.weight"),
                       .ffn_in_bias = find("ffn.in.bias"),
                       .ffn_out = find("ffn.out.weight"),
                       .ffn_out_bias = find("ffn.out.bias")});
  }
}

void Units::declare_records() {
  const ModelConfig& m = shape_.model;
  const DType c = shape_.precision.compute;
  const DType r = shape_.precision.residual;
  const int64_t n = shape_.rows();
  const int64_t own = stream_rows();
  const int64_t h = m.hidden_size;
  const int64_t ffn_in_width = is_gated(m.activation) ? 2 * ffn_width() : ffn_width();
  const bool has_mean = m.norm == NormKind::layernorm;

  RecordLayout& saved = block_fields_.saved;
  const bool fp8 = has_fp8_linears();
  if (!fp8) block_fields_.norm1 = saved.add(c, own, h);
  if (has_mean) block_fields_.mean1 = saved.add(DType::f32, 1, own);
  block_fields_.rstd1 = saved.add(DType::f32, 1, own);
  block_fields_.qkv = saved.add(c, n, q_width() + 2 * kv_width());
  if (m.qk_norm) {
    block_fields_.qk = saved.add(c, n, q_width() + kv_width());
    block_fields_.qk_rstd = saved.add(DType::f32, n, num_heads() + num_kv_heads());
  }
  block_fields_.attention = saved.add(c, n, q_width());
  block_fields_.lse = saved.add(DType::f32, shape_.batch * num_heads(), shape_.sequence_length);
  block_fields_.mid = saved.add(r, own, h);
  if (!fp8) block_fields_.norm2 = saved.add(c, own, h);
  if (has_mean) block_fields_.mean2 = saved.add(DType::f32, 1, own);
  block_fields_.rstd2 = saved.add(DType::f32, 1, own);
  block_fields_.ffn_in = saved.add(c, n, ffn_in_width);
  if (!fp8) block_fields_.ffn_act = saved.add(c, n, ffn_width());

  RecordLayout& gradients = block_fields_.gradients;
  if (branch_gradient_is_kept()) {
    block_fields_.d_branch1 = gradients.add(c, n, h);
    block_fields_.d_branch2 = gradients.add(c, n, h);
  }
  block_fields_.d_mid = gradients.add(r, own, h);
  if (fp8 && !branch_gradient_differs()) block_fields_.d_mid_amax = gradients.add(DType::f32, 1, amax_parts);
  if (!fp8) block_fields_.d_qkv = gradients.add(c, n, q_width() + 2 * kv_width());
  if (!fp8) block_fields_.d_ffn_in = gradients.add(c, n, ffn_in_width);
  if (fp8) declare_fp8_records();

  head_fields_.norm = head_fields_.saved.add(c, own, h);
  if (has_mean) head_fields_.mean = head_fields_.saved.add(DType::f32, 1, own);
  head_fields_.rstd = head_fields_.saved.add(DType::f32, 1, own);
  head_fields_.d_norm = head_fields_.gradients.add(c, own, h);
}

int64_t Units::saved_bytes(int64_t unit) const {
  if (unit == 0) return 0;
  return is_head(unit) ? head_fields_.saved.bytes() : block_fields_.saved.bytes();
}

int64_t Units::gradient_bytes(int64_t unit) const {
  if (unit == 0) return 0;
  return is_head(unit) ? head_fields_.gradients.bytes() : block_fields_.gradients.bytes();
}

int64_t Units::fp8_weights_bytes() const { return block_fields_.fp8_weights.bytes(); }

int64_t Units::stream_bytes() const { return align_up(stream(nullptr).bytes()); }

int64_t Units::carrier_bytes() const { return stream_bytes() + align_up(carrier_amax(nullptr).bytes()); }

int64_t Units::num_kv_heads() const { return std::max<int64_t>(1, shape_.model.num_kv_heads / tensor_.place.size); }

Matrix Units::place_of(std::byte* unit, DType dtype, int64_t tensor) const {
  if (tensor < 0) return {};
  const auto& shape = tensor_shapes_[static_cast<size_t>(tensor)];
  std::byte* data = unit + tensor_offsets_[static_cast<size_t>(tensor)] * dtype_bytes(dtype);
  return shape.size() == 2 ? Matrix(data, dtype, shape[0], shape[1]) : Matrix(data, dtype, 1, shape[0]);
}

Matrix Units::weight(const UnitCall& call, int64_t tensor) const {
  return place_of(call.parameters.weights, shape_.precision.compute, tensor);
}

Matrix Units::norm_weight(const UnitCall& call, int64_t tensor) const {
  return place_of(call.parameters.norms, DType::f32, tensor);
}

Matrix Units::gradient(const UnitCall& call, int64_t tensor) const {
  return place_of(call.parameters.gradients, DType::f32, tensor);
}

Matrix Units::head_matrix(std::byte* unit, DType dtype) const {
  return place_of(unit, dtype, head_weight_ >= 0 ? head_weight_ : token_table_);
}

Dropout Units::embedding_dropout(const UnitCall& call) const {
  return {shape_.training ? shape_.model.residual_dropout : 0, random_key(shape_.seed, RandomUse::embedding_dropout),
          call.sample_ids};
}

Dropout Units::branch_dropout(const UnitCall& call, int64_t unit, BranchSite site) const {
  return {
      shape_.training ? shape_.model.residual_dropout : 0,
      random_key(shape_.seed, RandomUse::branch_dropout, static_cast<uint32_t>(unit - 1), static_cast<uint32_t>(site)),
      call.sample_ids, first_row()};
}

Dropout Units::attention_dropout(const UnitCall& call, int64_t unit) const {
  return {shape_.training ? shape_.model.attention_dropout : 0,
          random_key(shape_.seed, RandomUse::attention_dropout, static_cast<uint32_t>(unit - 1)), call.sample_ids, 0,
          tensor_.place.rank * num_heads()};
}

bool Units::branch_gradient_differs() const {
  return shape_.model.residual_dropout > 0 || shape_.precision.residual != shape_.precision.compute;
}

void Units::forward(int64_t unit, const UnitCall& call) {
  if (unit == 0) {
    embedding_forward(call);
  } else if (is_head(unit)) {
    head_forward(call);
  } else {
    block_forward(unit, call);
  }
}

void Units::backward(int64_t unit, const UnitCall& call, BackwardPart part) {
  if (unit == 0) {
    embedding_backward(call);
  } else if (is_head(unit)) {
    head_backward_input(call);
  } else if (part == BackwardPart::weight) {
    block_backward_weight(unit, call);
  } else {
    block_backward_input(unit, call, part == BackwardPart::both);
  }
}

void Units::norm_forward(const UnitCall& call, const NormSite& site, const Matrix& x, const Factor& y,
                         const Matrix& branch, const Dropout& dropout, const Matrix& x_out) {
  backend_.run(NormForward{.kind = shape_.model.norm,
                           .eps = shape_.model.norm_eps,
                           .sequence_length = shape_.sequence_length,
                           .x = x,
                           .branch = branch,
                           .dropout = dropout,
                           .x_out = x_out,
                           .gamma = norm_weight(call, site.gamma),
                           .beta = norm_weight(call, site.beta),
                           .y = y.x,
                           .mean = site.mean,
                           .rstd = site.rstd,
                           .amax = y.amax});
}

void Units::norm_backward(const UnitCall& call, const NormSite& site, const Matrix& dy, const Matrix& x,
                          const Matrix& dx_residual, const Factor& dx) {
  backend_.run(NormBackward{.kind = shape_.model.norm,
                            .dy = dy,
                            .x = x,
                            .gamma = norm_weight(call, site.gamma),
                            .mean = site.mean,
                            .rstd = site.rstd,
                            .dx_residual = dx_residual,
                            .dx = dx.x,
                            .d_gamma = gradient(call, site.gamma),
                            .d_beta = gradient(call, site.beta),
                            .accumulate = call.accumulate,
                            .amax = dx.amax});
}

int64_t Units::first_token() const {
  return tensor_.place.rank * tensor_shapes_[static_cast<size_t>(token_table_)].front();
}

int64_t Units::true_tokens() const {
  const int64_t rows = tensor_shapes_[static_cast<size_t>(token_table_)].front();
  return std::clamp<int64_t>(shape_.model.vocab_size - first_token(), 0, rows);
}

// Every rank looks up the tokens of its slice of the vocabulary; the first one adds the positions.
void Units::embedding_forward(const UnitCall& call) {
  WorkspaceFrame frame(*call.workspace);
  const Matrix out = stream(call.output);
  const Matrix part = tensor_.sequence ? frame.take(out.dtype, shape_.rows(), out.cols) : out;
  backend_.run(EmbeddingForward{.tokens = call.tokens,
                                .sequence_length = shape_.sequence_length,
                                .token_table = weight(call, token_table_),
                                .position_table = tensor_.place.rank == 0 ? weight(call, position_table_) : Matrix{},
                                .dropout = embedding_dropout(call),
                                .x = part,
                                .first_token = first_token(),
                                .num_tokens = is_split() ? tensor_.place.size * weight(call, token_table_).rows : 0});
  if (!is_split()) return;
  Lane& lane = *tensor_.lane;
  lane.wait(tensor_.sequence ? lane.reduce_scatter(tensor_.group, part.data, out.data, out.count(), out.dtype)
                             : lane.all_reduce(tensor_.group, part.data, part.count(), part.dtype));
}

void Units::embedding_backward(const UnitCall& call) {
  WorkspaceFrame frame(*call.workspace);
  const Matrix rows = stream(call.d_output);
  const Matrix dx = wait(begin_gather(rows, room_for_all_rows(frame, rows)));
  // With a tied head the loss action has already written this micro-batch's share of the token table's gradient.
  backend_.run(
      EmbeddingBackward{.tokens = call.tokens,
                        .sequence_length = shape_.sequence_length,
                        .dx = dx,
                        .dropout = embedding_dropout(call),
                        .d_token_table = gradient(call, token_table_),
                        .d_position_table = gradient(call, position_table_),
                        .accumulate_token = call.accumulate || shape_.model.tied_head,
                        .accumulate_position = call.accumulate,
                        .first_token = first_token(),
                        .num_tokens = is_split() ? tensor_.place.size * gradient(call, token_table_).rows : 0});
}

}  // namespace gptrain
