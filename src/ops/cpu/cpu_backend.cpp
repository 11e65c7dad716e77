#include "ops/cpu/cpu_backend.h"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <omp.h>
#include <stdexcept>
#include <sys/mman.h>

#include "base/error.h"
#include "base/units.h"
#include "ops/check.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/fused_product.h"

namespace gptrain {
namespace {

// Below this size a huge page would mostly be waste.
constexpr int64_t huge_page_bytes = int64_t{2} << 20;

class MappedMemory final : public DeviceMemory {
 public:
  using DeviceMemory::DeviceMemory;
  ~MappedMemory() override {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
  }
};

// oneDNN leaves out the part of a product that a thread was to do which OpenMP does not give it.
void require_team(int num_threads) {
  const TeamSize size(num_threads);
  int team = 1;
#pragma omp parallel
#pragma omp single
  team = omp_get_num_threads();
  if (team == num_threads) return;
  throw Error(ExitCode::machine,
              "OpenMP gives {} of the {} threads asked for: unset OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS, or set "
              "run.threads = {}",
              team, num_threads, team);
}

}  // namespace

CpuBackend::CpuBackend(int num_threads, bool thread_independent)
    : target_(this_machine(num_threads)), linear_(target_.num_threads, thread_independent) {
  require_team(target_.num_threads);
  context_.num_threads = target_.num_threads;
  context_.kernels = &select_kernels();
}

std::unique_ptr<DeviceMemory> CpuBackend::allocate(int64_t bytes) {
  if (bytes == 0) return std::make_unique<MappedMemory>(nullptr, 0);
  void* const data =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(ExitCode::machine, "cannot allocate {} of memory: {}; this machine has {} that a process may use",
                format_bytes(static_cast<double>(bytes)), std::strerror(errno),
                format_bytes(static_cast<double>(target_.memory_bytes)));
  }
  // Only advice: where the system has no huge pages, small ones work too.
  if (bytes >= huge_page_bytes) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return std::make_unique<MappedMemory>(data, bytes);
}

void CpuBackend::set_scratch(std::byte* data, int64_t bytes) {
  context_.scratch = data;
  context_.scratch_bytes = bytes;
}

void CpuBackend::upload(void* device, const void* host, int64_t bytes) {
  if (bytes > 0) std::memcpy(device, host, static_cast<size_t>(bytes));
}

void CpuBackend::download(void* host, const void* device, int64_t bytes) {
  if (bytes > 0) std::memcpy(host, device, static_cast<size_t>(bytes));
}

namespace {

// No kernel here has f16: oneDNN 2.6 has no products in it.
template <typename Op>
void refuse_f16(const Op& op) {
  bool found = false;
  const auto look_at = [&](const Matrix& operand) { found = found || operand.dtype == DType::f16; };
  if constexpr (requires { op.x; }) look_at(op.x);
  if constexpr (requires { op.y; }) look_at(op.y);
  if constexpr (requires { op.dx; }) look_at(op.dx);
  if constexpr (requires { op.dy; }) look_at(op.dy);
  if constexpr (requires { op.q; }) look_at(op.q);
  if constexpr (requires { op.dq; }) look_at(op.dq);
  if constexpr (requires { op.token_table; }) look_at(op.token_table);
  if constexpr (requires { op.branch; }) look_at(op.branch);
  if constexpr (requires { op.d_branch; }) look_at(op.d_branch);
  if constexpr (requires { op.logits; }) look_at(op.logits);
  if constexpr (requires { op.d_logits; }) look_at(op.d_logits);
  if constexpr (requires { op.weights; }) look_at(op.weights);
  if constexpr (requires { op.from; }) look_at(op.from);
  if constexpr (requires { op.to; }) look_at(op.to);
  if constexpr (requires { op.s; }) look_at(op.s);
  if (found) throw std::logic_error(fmt::format("{}: the CPU backend has no f16", Op::name));
}

void run_amax(const Matrix& x, const Matrix& amax) {
  if (amax.given()) cpu_amax({x, amax});
}

}  // namespace

template <typename Op>
void CpuBackend::prepare(const Op& op) const {
  check(op);
  refuse_f16(op);
  require_scratch(Op::name, cpu_scratch_bytes(op, context_.num_threads), context_.scratch_bytes);
}

std::unique_ptr<PackedLinear> CpuBackend::pack(const LinearForward& op, const Allocate& allocate) {
  prepare(op);
  return linear_.pack(op, allocate, context_.scratch, context_.scratch_bytes);
}

void CpuBackend::run(const EmbeddingForward& op) {
  prepare(op);
  cpu_embedding_forward(op, context_);
}

void CpuBackend::run(const EmbeddingBackward& op) {
  prepare(op);
  cpu_embedding_backward(op, context_);
}

void CpuBackend::run(const NormForward& op) {
  prepare(op);
  cpu_norm_forward(op, context_);
  run_amax(op.y, op.amax);
}

void CpuBackend::run(const NormBackward& op) {
  prepare(op);
  cpu_norm_backward(op, context_);
  run_amax(op.dx, op.amax);
}

void CpuBackend::run(const ResidualAdd& op) {
  prepare(op);
  cpu_residual_add(op, context_);
}

void CpuBackend::run(const BranchBackward& op) {
  prepare(op);
  cpu_branch_backward(op, context_);
  run_amax(op.d_branch, op.amax);
}

void CpuBackend::run(const LinearForward& op) {
  prepare(op);
  linear_.run(product_alone(op), context_.scratch, context_.scratch_bytes);
  if (op.pre_activation.given()) cpu_activation_forward(activation_of(op), context_);
}

void CpuBackend::run(const LinearBackwardInput& op) {
  prepare(op);
  linear_.run(product_alone(op), context_.scratch, context_.scratch_bytes);
  if (op.pre_activation.given()) cpu_activation_backward(activation_of(op), context_);
}

void CpuBackend::run(const LinearBackwardWeight& op) {
  prepare(op);
  linear_.run(op, context_.scratch, context_.scratch_bytes);
}

void CpuBackend::run(const QueryKeyForward& op) {
  prepare(op);
  cpu_query_key_forward(op, rotary_tables_, context_);
}

void CpuBackend::run(const QueryKeyBackward& op) {
  prepare(op);
  cpu_query_key_backward(op, rotary_tables_, context_);
}

void CpuBackend::run(const AttentionForward& op) {
  prepare(op);
  cpu_attention_forward(op, context_.num_threads, context_.scratch, context_.scratch_bytes);
}

void CpuBackend::run(const AttentionBackward& op) {
  prepare(op);
  cpu_attention_backward(op, context_.num_threads, context_.scratch, context_.scratch_bytes);
}

void CpuBackend::run(const ActivationForward& op) {
  prepare(op);
  cpu_activation_forward(op, context_);
  run_amax(op.y, op.amax);
}

void CpuBackend::run(const ActivationBackward& op) {
  prepare(op);
  cpu_activation_backward(op, context_);
  run_amax(op.dx, op.amax);
}

void CpuBackend::run(const CrossEntropyStatistics& op) {
  prepare(op);
  cpu_cross_entropy_statistics(op, context_);
}

void CpuBackend::run(const CrossEntropy& op) {
  prepare(op);
  cpu_cross_entropy(op, context_);
}

void CpuBackend::run(const AccumulateLoss& op) {
  prepare(op);
  cpu_accumulate_loss(op);
}

void CpuBackend::run(const SquaredNorm& op) {
  prepare(op);
  cpu_squared_norm(op, context_);
}

void CpuBackend::run(const PrepareUpdate& op) {
  prepare(op);
  cpu_prepare_update(op);
}

#define GPTRAIN_CPU_UPDATE(Op)         \
  void CpuBackend::run(const Op& op) { \
    prepare(op);                       \
    cpu_update(op, context_);          \
  }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_CPU_UPDATE)
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_CPU_UPDATE)
#undef GPTRAIN_CPU_UPDATE

#define GPTRAIN_CPU_TENSOR_NORMS(Op)   \
  void CpuBackend::run(const Op& op) { \
    prepare(op);                       \
    cpu_tensor_norms(op, context_);    \
  }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_CPU_TENSOR_NORMS)
#undef GPTRAIN_CPU_TENSOR_NORMS

#define GPTRAIN_CPU_FACTORED(Op)       \
  void CpuBackend::run(const Op& op) { \
    prepare(op);                       \
    cpu_factored(op, context_);        \
  }
GPTRAIN_FOR_EACH_FACTORED(GPTRAIN_CPU_FACTORED)
#undef GPTRAIN_CPU_FACTORED

void CpuBackend::run(const Cast& op) {
  prepare(op);
  cpu_cast(op, context_);
}

void CpuBackend::run(const WeightedSum& op) {
  prepare(op);
  cpu_weighted_sum(op, context_);
}

void CpuBackend::run(const Add& op) {
  prepare(op);
  cpu_add(op, context_);
}

void CpuBackend::run(const AddSums& op) {
  prepare(op);
  cpu_add_sums(op);
}

void CpuBackend::run(const KeepGradients& op) {
  prepare(op);
  cpu_keep_gradients(op, context_);
}

void CpuBackend::run(const Amax& op) {
  prepare(op);
  cpu_amax(op);
}

void CpuBackend::run(const Quantize& op) {
  prepare(op);
  cpu_quantize(op, context_.num_threads);
}

void CpuBackend::run(const ScaledProduct& op) {
  prepare(op);
  cpu_scaled_product(op, context_.num_threads);
}

void CpuBackend::run(const EncodeBlocks& op) {
  prepare(op);
  cpu_encode_blocks(op, context_);
}

void CpuBackend::run(const DecodeBlocks& op) {
  prepare(op);
  cpu_decode_blocks(op, context_);
}

void CpuBackend::run(const ProjectionMatrix& op) {
  prepare(op);
  cpu_projection_matrix(op, context_);
}

void CpuBackend::run(const SampleRows& op) {
  prepare(op);
  cpu_sample_rows(op, context_);
}

void CpuBackend::run(const BiasGradient& op) {
  prepare(op);
  linear_.run(op);
}

std::unique_ptr<Backend> make_cpu_backend(int num_threads, bool thread_independent) {
  return std::make_unique<CpuBackend>(num_threads, thread_independent);
}

}  // namespace gptrain
