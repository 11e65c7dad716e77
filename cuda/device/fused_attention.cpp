// Attention by cuDNN's graph API, through its header-only C++ frontend.
//
// cuDNN describes operands as [B, H, T, D] with a stride for each dimension: our [B T, H D] matrix of row stride s has
// strides {T s, D, s, 1}. Its `stats` [B, H, T, 1] is our lse: the natural log-sum-exp of scaled, masked scores.
// Backward needs it packed.
//
// Each document is a sequence of at most T tokens in a ragged batch: a padding mask has its length (equal for queries
// and keys), and a ragged offset per operand, lse included, gives its start in place of the batch stride. Causal masks
// and windows count from a document's first token. Unused sequences have length 0 and come last. The total length is
// not given, because backward would then take lse's rows for packed ones.
#include "fused_attention.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <initializer_list>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

// Leaves out the frontend's JSON support: it is for saved graphs, and needs a copy of the library that we take from the
// system.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "device/status.h"
#include "ops/footprint.h"
#include "ops/fused_attention_policy.h"

namespace gptrain::inline cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

static_assert(CUDNN_FRONTEND_VERSION >= 11300, "cudnn-frontend 1.13 or later is needed");

// cuDNN 9.10.0 and 9.10.1 are known to compute wrong results.
constexpr size_t oldest_cudnn = 91002;
constexpr size_t oldest_cudnn_deterministic_on_blackwell = 91801;
// Earlier versions' backward of ragged batches on Hopper may read uninitialised workspace and give NaN
// (github.com/NVIDIA/TransformerEngine/issues/2186).
constexpr size_t oldest_cudnn_ragged_on_hopper = 91800;
// Bytes that a kernel reads at a time; cuDNN does not check the alignment.
constexpr int64_t operand_alignment = 16;

enum Operand : int64_t { id_q = 1, id_k, id_v, id_o, id_lse, id_d_o, id_dq, id_dk, id_dv };
constexpr int64_t id_query_lengths = 10, id_key_lengths = 11;
constexpr int64_t id_offsets = 20;  // the offsets of operand n have id id_offsets + n
static_assert(id_dv - id_q == static_cast<int64_t>(DocumentOperand::dv));

void check_cudnn(cudnnStatus_t status, std::string_view what) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw Error(ExitCode::device, "{}: cuDNN error {}", what, cudnnGetErrorString(status));
}

std::string last_cudnn_error() {
  std::array<char, 1024> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  return text.data();
}

std::array<Matrix, 4> operands(const AttentionForward& op) { return {op.q, op.k, op.v, op.o}; }
std::array<Matrix, 8> operands(const AttentionBackward& op) {
  return {op.q, op.k, op.v, op.o, op.d_o, op.dq, op.dk, op.dv};
}

bool in_packs(const Matrix& matrix) {
  return matrix.stride * dtype_bytes(matrix.dtype) % operand_alignment == 0 &&
         reinterpret_cast<uintptr_t>(matrix.data) % operand_alignment == 0;
}

template <typename Op>
bool operands_fit(const Op& op) {
  const auto all = operands(op);
  return op.lse.stride == op.sequence_length && in_packs(op.lse) && std::all_of(all.begin(), all.end(), in_packs);
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

bool fixed_bits(const AttentionForward&) { return true; }
bool fixed_bits(const AttentionBackward& op) { return op.fixed_bits; }

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

fe::DataType_t data_type(DType dtype) { return dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF; }

// Describes a tensor's layout: `heads` heads of [B T, heads D] rows, which may be part of a wider matrix.
void describe(fe::graph::Tensor_attributes& tensor, Operand id, int64_t batch, const Matrix& matrix, int64_t heads,
              int64_t length, int64_t head_size) {
  tensor.set_uid(id)
      .set_dim({batch, heads, length, head_size})
      .set_stride({length * matrix.stride, head_size, matrix.stride, 1})
      .set_data_type(data_type(matrix.dtype));
}

// Describes a list of document lengths or offsets.
Tensor list_tensor(fe::graph::Graph& graph, const char* name, int64_t id, int64_t count, fe::DataType_t type) {
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

  std::shared_ptr<fe::graph::Graph> build(cudnnHandle_t handle) {
    add_attention();
    check_graph(op_, graph_->build(handle, {fe::HeurMode_t::A}));
    return graph_;
  }

 private:
  void add_attention();

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
void GraphBuilder<AttentionForward>::add_attention() {
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
void GraphBuilder<AttentionBackward>::add_attention() {
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

// A graph that can run on each piece of an op.
struct Plan {
  AttentionPiece piece;
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t workspace_bytes;
};

int64_t scratch_bytes_of(const AttentionForward& op, const FusedAttentionOptions&) {
  return fused_attention_scratch_bytes(op);
}
int64_t scratch_bytes_of(const AttentionBackward& op, const FusedAttentionOptions& options) {
  return options.backward_bytes.value_or(fused_attention_scratch_bytes(op));
}
int64_t most_groups_of(const AttentionForward& op, const FusedAttentionOptions&) {
  return fused_attention_most_groups(op);
}
int64_t most_groups_of(const AttentionBackward& op, const FusedAttentionOptions& options) {
  if (!options.backward_bytes) return fused_attention_most_groups(op);
  const int64_t room = *options.backward_bytes - fused_attention_overhead_bytes;
  return std::max<int64_t>(1, room / fused_attention_group_bytes(op));
}

// Builds a plan, with smaller pieces if cuDNN needs more workspace than planned.
template <typename Op>
Plan build_plan(const Op& op, cudnnHandle_t handle, const FusedAttentionOptions& options) {
  const int64_t scratch_bytes = scratch_bytes_of(op, options);
  for (AttentionPiece piece = fused_attention_piece(op, most_groups_of(op, options));;
       piece = fused_attention_piece(op, piece.groups() / 2)) {
    Plan plan{piece, GraphBuilder<Op>(op, piece).build(handle), 0};
    check_graph(op, plan.graph->get_workspace_size(plan.workspace_bytes));
    if (plan.workspace_bytes <= scratch_bytes) return plan;
    if (piece.groups() == 1) {
      throw Error(ExitCode::device, "cuDNN {} wants {} bytes of workspace for one head of {}, {} are planned",
                  cudnnGetVersion(), plan.workspace_bytes, text_of(op), scratch_bytes);
    }
  }
}

using Pointers = std::unordered_map<int64_t, void*>;

// Returns the address of the rows of sequence `sequence` and of key-value head `kv_head`, or of the query heads that
// use it.
template <typename Op>
void* at_queries(const Op& op, const Matrix& matrix, int64_t sequence, int64_t kv_head) {
  const int64_t column = kv_head * (op.num_heads / op.num_kv_heads) * op.head_size;
  return matrix.column_range(column, op.head_size).row_range(sequence * op.sequence_length, 1).data;
}
template <typename Op>
void* at_keys(const Op& op, const Matrix& matrix, int64_t sequence, int64_t kv_head) {
  return matrix.column_range(kv_head * op.head_size, op.head_size).row_range(sequence * op.sequence_length, 1).data;
}

template <typename Op>
void add_forward_pointers(Pointers& pointers, const Op& op, int64_t sequence, int64_t kv_head) {
  const int64_t lse_row = sequence * op.num_heads + kv_head * (op.num_heads / op.num_kv_heads);
  pointers[id_q] = at_queries(op, op.q, sequence, kv_head);
  pointers[id_k] = at_keys(op, op.k, sequence, kv_head);
  pointers[id_v] = at_keys(op, op.v, sequence, kv_head);
  pointers[id_o] = at_queries(op, op.o, sequence, kv_head);
  pointers[id_lse] = op.lse.row_range(lse_row, 1).data;
}
void set_pointers(Pointers& pointers, const AttentionForward& op, int64_t sequence, int64_t kv_head) {
  add_forward_pointers(pointers, op, sequence, kv_head);
}
void set_pointers(Pointers& pointers, const AttentionBackward& op, int64_t sequence, int64_t kv_head) {
  add_forward_pointers(pointers, op, sequence, kv_head);
  pointers[id_d_o] = at_queries(op, op.d_o, sequence, kv_head);
  pointers[id_dq] = at_queries(op, op.dq, sequence, kv_head);
  pointers[id_dk] = at_keys(op, op.dk, sequence, kv_head);
  pointers[id_dv] = at_keys(op, op.dv, sequence, kv_head);
}

// Adds the document lengths and offsets of a piece. `last`: the op's last operand.
void add_documents(Pointers& pointers, const DocumentTable& documents, int64_t piece, Operand last) {
  pointers[id_query_lengths] = pointers[id_key_lengths] = documents.lengths(piece);
  for (int64_t id = id_q; id <= last; ++id)
    pointers[id_offsets + id] = documents.offsets(piece, static_cast<DocumentOperand>(id - id_q));
}

Operand last_operand(const AttentionForward&) { return id_lse; }
Operand last_operand(const AttentionBackward&) { return id_dv; }

// Graphs of one op by shape.
template <typename Op>
class Plans {
 public:
  explicit Plans(const FusedAttentionOptions& options) : options_(options) {}

  AttentionPieces pieces(const Op& op, cudnnHandle_t handle) {
    const Shape shape = shape_of(op);
    const auto refused = refused_.find(shape);
    if (refused != refused_.end()) return {0, refused->second};
    try {
      return {plan(op, shape, handle).piece.batch, ""};
    } catch (const Error& error) {
      const std::string reason = error.what();  // many lines, at least one per engine
      return {0, refused_[shape] = reason.substr(0, reason.find('\n'))};
    }
  }

  void run(const Op& op, cudnnHandle_t handle, const DocumentTable* documents, std::byte* scratch) {
    const Plan& plan = this->plan(op, shape_of(op), handle);
    Pointers pointers;
    for (int64_t sequence = 0; sequence < op.batch; sequence += plan.piece.batch) {
      if (documents != nullptr) add_documents(pointers, *documents, sequence / plan.piece.batch, last_operand(op));
      for (int64_t kv_head = 0; kv_head < op.num_kv_heads; kv_head += plan.piece.kv_heads) {
        set_pointers(pointers, op, sequence, kv_head);
        check_graph(op, plan.graph->execute(handle, pointers, scratch));
      }
    }
  }

 private:
  const Plan& plan(const Op& op, const Shape& shape, cudnnHandle_t handle) {
    auto found = plans_.find(shape);
    if (found == plans_.end()) found = plans_.emplace(shape, build_plan(op, handle, options_)).first;
    return found->second;
  }

  FusedAttentionOptions options_;
  std::map<Shape, Plan> plans_;
  std::map<Shape, std::string> refused_;  // reason of the refusal by shape
};

struct DestroyHandle {
  void operator()(cudnnContext* handle) const { cudnnDestroy(handle); }
};

class CudnnAttention final : public FusedAttention {
 public:
  CudnnAttention(Stream stream, const FusedAttentionOptions& options)
      : forward_plans_(options), backward_plans_(options) {
    const size_t version = cudnnGetVersion();
    if (version < oldest_cudnn) {
      throw Error(ExitCode::device, "cuDNN {} was found, of which attention is wrong: {} or later is needed", version,
                  oldest_cudnn);
    }
    int device = 0, major = 0;
    check_cuda(cudaGetDevice(&device), "finding the device");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "asking for the device's kind");
    forward_ = major >= 8 && major <= 10;
    fixed_backward_ = major == 9 || (major == 10 && version >= oldest_cudnn_deterministic_on_blackwell);
    ragged_backward_ = major != 9 || version >= oldest_cudnn_ragged_on_hopper;
    cudnnHandle_t handle = nullptr;
    check_cudnn(cudnnCreate(&handle), "starting cuDNN");
    handle_.reset(handle);
    check_cudnn(cudnnSetStream(handle, stream), "giving cuDNN a stream");
  }

  AttentionPieces pieces(const AttentionForward& op) override {
    if (!forward_) return {0, not_this_device};
    if (!operands_fit(op)) return {0, not_these_places};
    return forward_plans_.pieces(op, handle_.get());
  }
  AttentionPieces pieces(const AttentionBackward& op) override {
    if (!(op.fixed_bits ? fixed_backward_ : forward_)) return {0, not_this_device};
    if (!operands_fit(op)) return {0, not_these_places};
    if (op.mask.max_documents > 0 && !ragged_backward_)
      return {0, "gradients of documents on Hopper are sound from cuDNN 9.18 on"};
    return backward_plans_.pieces(op, handle_.get());
  }

  void run(const AttentionForward& op, const DocumentTable* documents, std::byte* scratch) override {
    forward_plans_.run(op, handle_.get(), documents, scratch);
  }
  void run(const AttentionBackward& op, const DocumentTable* documents, std::byte* scratch) override {
    backward_plans_.run(op, handle_.get(), documents, scratch);
  }

 private:
  static constexpr const char* not_this_device = "this cuDNN has no attention with fixed bits for this device";
  static constexpr const char* not_these_places = "cuDNN wants rows that begin at multiples of 16 bytes";

  std::unique_ptr<cudnnContext, DestroyHandle> handle_;  // declared first: destroyed after the graphs
  bool forward_ = false, fixed_backward_ = false, ragged_backward_ = false;
  Plans<AttentionForward> forward_plans_;
  Plans<AttentionBackward> backward_plans_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(Stream stream, const FusedAttentionOptions& options) {
  return std::make_unique<CudnnAttention>(stream, options);
}

}  // namespace gptrain::cuda
