// Attention as graphs of cuDNN, through its header-only C++ frontend.
//
// cuDNN describes operands as [B, H, T, D] with a stride for each dimension: our [B T, H D] matrix of row stride s has
// strides {T s, D, s, 1}. Its `stats` [B, H, T, 1] is our lse: the natural log-sum-exp of scaled, masked scores.
// Backward needs it packed.
//
// Each document is a sequence of at most T tokens in a ragged batch: a padding mask has its length (equal for queries
// and keys), and a ragged offset per operand, lse included, gives its start in place of the batch stride. Causal masks
// and windows count from a document's first token. Unused sequences have length 0 and come last. The total length is
// not given, because backward would then take lse's rows for packed ones.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <utility>

// Leaves out the frontend's JSON support: it is for saved graphs, and needs a copy of the library that we take from the
// system.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "base/error.h"
#include "fused_attention.h"
#include "ops/footprint.h"
#include "ops/fused_attention_policy.h"

namespace gptrain::inline cuda {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

static_assert(CUDNN_FRONTEND_VERSION >= 11300, "cudnn-frontend 1.13 or later is needed");

enum Operand : int64_t { id_q = 1, id_k, id_v, id_o, id_lse, id_d_o, id_dq, id_dk, id_dv };
constexpr int64_t id_query_lengths = 10, id_key_lengths = 11;
constexpr int64_t id_offsets = 20;  // the offsets of operand n have id id_offsets + n
static_assert(id_dv - id_q == static_cast<int64_t>(DocumentOperand::dv));

inline std::string last_cudnn_error() {
  std::array<char, 1024> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  return text.data();
}

inline std::array<Matrix, 4> operands(const AttentionForward& op) { return {op.q, op.k, op.v, op.o}; }
inline std::array<Matrix, 8> operands(const AttentionBackward& op) {
  return {op.q, op.k, op.v, op.o, op.d_o, op.dq, op.dk, op.dv};
}

// Everything that a graph depends on.
struct Shape {
  DType dtype;
  int64_t batch, length, heads, kv_heads, head_size;
  float scale;
  bool causal;
  int64_t window, max_documents;
  bool fixed_bits;
  std::array<int64_t, 8> strides;
  auto operator<=>(const Shape&) const = default;
};

inline bool fixed_bits(const AttentionForward&) { return true; }
inline bool fixed_bits(const AttentionBackward& op) { return op.fixed_bits; }

template <typename Op>
Shape shape_of(const Op& op) {
  Shape shape{.dtype = op.q.dtype,
              .batch = op.batch,
              .length = op.sequence_length,
              .heads = op.num_heads,
              .kv_heads = op.num_kv_heads,
              .head_size = op.head_size,
              .scale = static_cast<float>(op.scale),
              .causal = op.mask.causal,
              .window = op.mask.window(),
              .max_documents = op.mask.max_documents,
              .fixed_bits = fixed_bits(op),
              .strides = {}};
  const auto all = operands(op);
  std::transform(all.begin(), all.end(), shape.strides.begin(), [](const Matrix& matrix) { return matrix.stride; });
  return shape;
}

template <typename Op>
std::string text_of(const Op& op) {
  const Shape shape = shape_of(op);
  return fmt::format("{} {}{}, row strides {}", Op::name, shape_text(op), op.mask.causal ? " causal" : "",
                     fmt::join(shape.strides.begin(), shape.strides.begin() + operands(op).size(), ","));
}

template <typename Op>
void check_graph(const Op& op, const fe::error_t& status) {
  if (status.is_good()) return;
  const std::string reason = last_cudnn_error();
  throw Error(ExitCode::device, "cuDNN {} refuses {}: {}{}{}", cudnnGetVersion(), text_of(op), status.err_msg,
              reason.empty() ? "" : "; ", reason);
}

inline fe::DataType_t data_type(DType dtype) {
  return dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
}

// Describes a tensor's layout: `heads` heads of [B T, heads D] rows, which may be part of a wider matrix.
inline void describe(fe::graph::Tensor_attributes& tensor, Operand id, int64_t batch, const Matrix& matrix,
                     int64_t heads, int64_t length, int64_t head_size) {
  tensor.set_uid(id)
      .set_dim({batch, heads, length, head_size})
      .set_stride({length * matrix.stride, head_size, matrix.stride, 1})
      .set_data_type(data_type(matrix.dtype));
}

// Describes a list of document lengths or offsets.
inline Tensor list_tensor(fe::graph::Graph& graph, const char* name, int64_t id, int64_t count, fe::DataType_t type) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(id)
                          .set_dim({count, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(type));
}

// Sets the mask: the only code that translates masks. The left bound is a length: keys with key + bound > query are
// visible.
template <typename Attributes>
void set_mask(Attributes& attributes, const AttentionMask& mask, int64_t length) {
  if (mask.causal)
    attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (mask.window() > 0 && mask.window() < length)
    attributes.set_diagonal_band_left_bound(static_cast<int>(mask.window()));
}

// Builds the graph for one piece of an op.
template <typename Op>
class GraphBuilder {
 public:
  GraphBuilder(const Op& op, const AttentionPiece& piece)
      : op_(op),
        piece_(piece),
        batch_(piece.batch * fused_attention_matrices(op.mask)),
        heads_(piece.kv_heads * (op.num_heads / op.num_kv_heads)) {
    graph_->set_io_data_type(data_type(op.q.dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  // The graph, empty until attention is added once. A device that is only described is set before.
  const std::shared_ptr<fe::graph::Graph>& graph() const { return graph_; }
  void add_attention();

 private:
  void describe_queries(fe::graph::Tensor_attributes& tensor, Operand id, const Matrix& matrix) const {
    describe(tensor, id, batch_, matrix, heads_, op_.sequence_length, op_.head_size);
    set_offsets(tensor, id);
  }
  void describe_keys(fe::graph::Tensor_attributes& tensor, Operand id, const Matrix& matrix) const {
    describe(tensor, id, batch_, matrix, piece_.kv_heads, op_.sequence_length, op_.head_size);
    set_offsets(tensor, id);
  }
  void describe_lse(fe::graph::Tensor_attributes& tensor) const {
    tensor.set_uid(id_lse)
        .set_dim({batch_, heads_, op_.sequence_length, 1})
        .set_stride({heads_ * op_.sequence_length, op_.sequence_length, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
    set_offsets(tensor, id_lse);
  }
  void set_offsets(fe::graph::Tensor_attributes& tensor, Operand id) const {
    if (op_.mask.max_documents == 0) return;
    tensor.set_ragged_offset(list_tensor(*graph_, "offsets", id_offsets + id, batch_ + 1, fe::DataType_t::INT64));
  }
  template <typename Attributes>
  void set_lengths(Attributes& attributes) {
    if (op_.mask.max_documents == 0) return;
    attributes.set_padding_mask(true)
        .set_seq_len_q(list_tensor(*graph_, "query_lengths", id_query_lengths, batch_, fe::DataType_t::INT32))
        .set_seq_len_kv(list_tensor(*graph_, "key_lengths", id_key_lengths, batch_, fe::DataType_t::INT32));
  }
  Tensor queries(const char* name, Operand id, const Matrix& matrix) {
    fe::graph::Tensor_attributes tensor;
    describe_queries(tensor.set_name(name), id, matrix);
    return graph_->tensor(tensor);
  }
  Tensor keys(const char* name, Operand id, const Matrix& matrix) {
    fe::graph::Tensor_attributes tensor;
    describe_keys(tensor.set_name(name), id, matrix);
    return graph_->tensor(tensor);
  }

  const Op& op_;
  AttentionPiece piece_;
  int64_t batch_, heads_;
  std::shared_ptr<fe::graph::Graph> graph_ = std::make_shared<fe::graph::Graph>();
};

template <>
inline void GraphBuilder<AttentionForward>::add_attention() {
  fe::graph::SDPA_attributes attributes;
  attributes.set_name("attention_forward").set_generate_stats(true).set_attn_scale(static_cast<float>(op_.scale));
  set_mask(attributes, op_.mask, op_.sequence_length);
  set_lengths(attributes);
  const auto [o, lse] =
      graph_->sdpa(queries("q", id_q, op_.q), keys("k", id_k, op_.k), keys("v", id_v, op_.v), std::move(attributes));
  describe_queries(o->set_output(true), id_o, op_.o);
  describe_lse(lse->set_output(true));
}

template <>
inline void GraphBuilder<AttentionBackward>::add_attention() {
  fe::graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward").set_attn_scale(static_cast<float>(op_.scale));
  attributes.set_deterministic_algorithm(op_.fixed_bits);
  set_mask(attributes, op_.mask, op_.sequence_length);
  set_lengths(attributes);
  fe::graph::Tensor_attributes lse;
  describe_lse(lse.set_name("lse"));
  const auto [dq, dk, dv] = graph_->sdpa_backward(
      queries("q", id_q, op_.q), keys("k", id_k, op_.k), keys("v", id_v, op_.v), queries("o", id_o, op_.o),
      queries("d_o", id_d_o, op_.d_o), graph_->tensor(lse), std::move(attributes));
  describe_queries(dq->set_output(true), id_dq, op_.dq);
  describe_keys(dk->set_output(true), id_dk, op_.dk);
  describe_keys(dv->set_output(true), id_dv, op_.dv);
}

}  // namespace gptrain::cuda
