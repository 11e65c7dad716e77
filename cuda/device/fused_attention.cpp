// Attention by cuDNN: plans by shape, and their runs piece by piece.
#include "fused_attention.h"

#include <algorithm>
#include <cuda_runtime.h>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "device/attention_graphs.h"
#include "device/late_library.h"
#include "device/status.h"
#include "ops/fused_attention_policy.h"

namespace gptrain::inline cuda {
namespace {

// cuDNN 9.10.0 and 9.10.1 are known to compute wrong results.
constexpr size_t oldest_cudnn = 91002;
constexpr size_t oldest_cudnn_deterministic_on_blackwell = 91801;
constexpr size_t oldest_cudnn_deterministic_on_ampere = 91900;  // without documents
// Earlier versions' backward of ragged batches on Hopper may read uninitialised workspace and give NaN
// (github.com/NVIDIA/TransformerEngine/issues/2186).
constexpr size_t oldest_cudnn_ragged_on_hopper = 91800;
// Bytes that a kernel reads at a time; cuDNN does not check the alignment.
constexpr int64_t operand_alignment = 16;

void check_cudnn(cudnnStatus_t status, std::string_view what) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw Error(ExitCode::device, "{}: cuDNN error {}", what, cudnnGetErrorString(status));
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
  const int64_t available_bytes = *options.backward_bytes - fused_attention_overhead_bytes;
  return std::max<int64_t>(1, available_bytes / fused_attention_group_bytes(op));
}

// Builds a plan, with smaller pieces if cuDNN needs more workspace than planned.
template <typename Op>
Plan build_plan(const Op& op, cudnnHandle_t handle, const FusedAttentionOptions& options) {
  const int64_t scratch_bytes = scratch_bytes_of(op, options);
  for (AttentionPiece piece = fused_attention_piece(op, most_groups_of(op, options));;
       piece = fused_attention_piece(op, piece.groups() / 2)) {
    GraphBuilder<Op> builder(op, piece);
    builder.add_attention();
    Plan plan{piece, builder.graph(), 0};
    check_graph(op, plan.graph->build(handle, {fe::HeurMode_t::A}));
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
      throw Error(ExitCode::machine, "cuDNN {} was found, whose attention gives wrong results: {} or later is needed",
                  version, oldest_cudnn);
    }
    int device = 0, major = 0;
    check_cuda(cudaGetDevice(&device), "finding the device");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "asking for the device's kind");
    forward_ = major >= 8 && major <= 10;
    fixed_dense_backward_ = major == 8 && version >= oldest_cudnn_deterministic_on_ampere;
    fixed_backward_ = major == 9 || (major == 10 && version >= oldest_cudnn_deterministic_on_blackwell);
    ragged_backward_ = major != 9 || version >= oldest_cudnn_ragged_on_hopper;
    cudnnHandle_t handle = nullptr;
    open_nvrtc();
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
    const bool fixed = fixed_backward_ || (fixed_dense_backward_ && op.mask.max_documents == 0);
    if (!(op.fixed_bits ? fixed : forward_)) return {0, not_this_device};
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
  bool forward_ = false, fixed_backward_ = false, fixed_dense_backward_ = false, ragged_backward_ = false;
  Plans<AttentionForward> forward_plans_;
  Plans<AttentionBackward> backward_plans_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(Stream stream, const FusedAttentionOptions& options) {
  return std::make_unique<CudnnAttention>(stream, options);
}

}  // namespace gptrain::cuda
