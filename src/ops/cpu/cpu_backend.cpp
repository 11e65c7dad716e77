#include "ops/cpu/cpu_backend.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>

#include "base/error.h"
#include "base/units.h"
#include "ops/check.h"
#include "ops/cpu/attention.h"
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

}  // namespace

CpuBackend::CpuBackend(int num_threads, bool thread_independent)
    : target_(this_machine(num_threads)), linear_(target_.num_threads, thread_independent) {
  context_.num_threads = target_.num_threads;
  context_.kernels = &select_kernels();
}

std::unique_ptr<DeviceMemory> CpuBackend::allocate(int64_t bytes) {
  if (bytes == 0) return std::make_unique<MappedMemory>(nullptr, 0);
  void* const data =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(ExitCode::device, "cannot allocate {} of memory: {}; this machine has {} that a process may use",
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

template <typename Op>
void CpuBackend::prepare(const Op& op) const {
  check(op);
  require_scratch(Op::name, cpu_scratch_bytes(op, context_.num_threads), context_.scratch_bytes);
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
}

void CpuBackend::run(const NormBackward& op) {
  prepare(op);
  cpu_norm_backward(op, context_);
}

void CpuBackend::run(const ResidualAdd& op) {
  prepare(op);
  cpu_residual_add(op, context_);
}

void CpuBackend::run(const BranchBackward& op) {
  prepare(op);
  cpu_branch_backward(op, context_);
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
}

void CpuBackend::run(const ActivationBackward& op) {
  prepare(op);
  cpu_activation_backward(op, context_);
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

void CpuBackend::run(const AdamW& op) {
  prepare(op);
  cpu_adamw(op, context_);
}

void CpuBackend::run(const Cast& op) {
  prepare(op);
  cpu_cast(op, context_);
}

void CpuBackend::run(const Add& op) {
  prepare(op);
  cpu_add(op, context_);
}

std::unique_ptr<Backend> make_cpu_backend(int num_threads, bool thread_independent) {
  return std::make_unique<CpuBackend>(num_threads, thread_independent);
}

}  // namespace gptrain
