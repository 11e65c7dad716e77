#include "ops/cpu/cpu_backend.h"

#include <cerrno>
#include <cstring>
#include <omp.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/process_limits.h"
#include "base/thread.h"
#include "base/units.h"
#include "ops/check.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"

namespace gptrain::inline ops {
namespace {

// Allocations below this size would waste most of a huge page.
constexpr int64_t huge_page_bytes = int64_t{2} << 20;

// Address space of oneDNN, of OpenMP and of a thread's stack and heap, which crash without.
constexpr int64_t library_bytes = int64_t{64} << 20;
constexpr int64_t thread_bytes = int64_t{24} << 20;

class MappedMemory final : public DeviceMemory {
 public:
  using DeviceMemory::DeviceMemory;
  ~MappedMemory() override {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
};

// Lets every thread write to its share of new memory. The system maps memory and fills it with zeros at the first
// write, which would make the first step slower than the others.
void touch(std::byte* memory, int64_t bytes, int num_threads) {
  constexpr int64_t page_bytes = 4096;
  parallel_shares(num_threads, (bytes + page_bytes - 1) / page_bytes, [&](int64_t first, int64_t end) {
    for (int64_t page = first; page < end; ++page) *static_cast<volatile std::byte*>(memory + page * page_bytes) = {};
  });
}

// oneDNN leaves a part of a product uncomputed if OpenMP starts fewer threads than it expects. OpenMP ends the process
// where it cannot start a thread.
void require_team(int num_threads) {
  require_threads(num_threads - 1);
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
  require_libraries(0);
  require_team(target_.num_threads);
  context_ = {.num_threads = target_.num_threads,
              .kernels = &select_kernels(),
              .rotary_tables = &rotary_tables_,
              .linear = &linear_};
}

void CpuBackend::require_libraries(int64_t bytes) const {
  require_address_space(bytes + library_bytes + target_.num_threads * thread_bytes);
}

std::unique_ptr<DeviceMemory> CpuBackend::allocate(int64_t bytes) {
  if (bytes == 0) return std::make_unique<MappedMemory>(nullptr, 0);
  require_libraries(bytes);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(ExitCode::machine, "cannot allocate {} of memory: {}; this machine has {} that a process may use",
                format_bytes(static_cast<double>(bytes)), std::strerror(errno),
                format_bytes(static_cast<double>(target_.memory_bytes)));
  }
  // Advice only: without huge pages, small ones work too.
  if (bytes >= huge_page_bytes) {
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    touch(static_cast<std::byte*>(data), bytes, target_.num_threads);
  }
  return std::make_unique<MappedMemory>(data, bytes);
}

void CpuBackend::set_scratch(std::byte* data, int64_t bytes) {
  context_.scratch = data;
  context_.scratch_bytes = bytes;
}

void CpuBackend::upload(void* device, const void* host, int64_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuBackend::download(void* host, const void* device, int64_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

// Most CPU kernels do not support f16, since oneDNN 2.6 has no f16 products.
template <typename Op>
void CpuBackend::prepare(const Op& op) const {
  check(op, has_f16_on_cpu<Op> ? std::optional<DType>() : DType::f16);
  require_scratch(Op::name, cpu_scratch_bytes(op, context_.num_threads), context_.scratch_bytes);
}

std::unique_ptr<PackedLinear> CpuBackend::pack(const LinearForward& op, const Allocate& allocate) {
  prepare(op);
  return linear_.pack(op, allocate, context_.scratch, context_.scratch_bytes);
}

#define GPTRAIN_RUN(Op)                \
  void CpuBackend::run(const Op& op) { \
    prepare(op);                       \
    cpu_run(op, context_);             \
  }
GPTRAIN_FOR_EACH_OP(GPTRAIN_RUN)
#undef GPTRAIN_RUN

std::unique_ptr<Backend> make_cpu_backend(int num_threads, bool thread_independent) {
  return std::make_unique<CpuBackend>(num_threads, thread_independent);
}

}  // namespace gptrain::ops
