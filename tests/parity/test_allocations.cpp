// A step allocates nothing once the first two have run: every call of malloc and operator new in this process is
// watched.
//
// oneDNN builds a small map of arguments in each execute call and frees it before it returns. Its calls are identified
// by the caller's address and must leave nothing allocated. gptrain itself must not allocate at all, also after a
// profiled step.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <new>
#include <string>

#include "base/error.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "step/step_profiler.h"

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* block);
}

namespace {

std::atomic<bool> watching{false};
std::atomic<size_t> num_callers{0};
std::atomic<int64_t> live_bytes{0};
std::array<void*, 65536> callers;

void* note(void* block, void* caller) {
  if (watching && block != nullptr) {
    live_bytes += static_cast<int64_t>(malloc_usable_size(block));
    const size_t index = num_callers++;
    if (index < callers.size()) callers[index] = caller;
  }
  return block;
}

void note_free(void* block) {
  if (watching && block != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(block));
}

}  // namespace

extern "C" {
void* malloc(size_t size) { return note(__libc_malloc(size), __builtin_return_address(0)); }
void* calloc(size_t count, size_t size) { return note(__libc_calloc(count, size), __builtin_return_address(0)); }
void* realloc(void* old, size_t size) {
  note_free(old);
  return note(__libc_realloc(old, size), __builtin_return_address(0));
}
void* memalign(size_t alignment, size_t size) {
  return note(__libc_memalign(alignment, size), __builtin_return_address(0));
}
void* aligned_alloc(size_t alignment, size_t size) {
  return note(__libc_memalign(alignment, size), __builtin_return_address(0));
}
int posix_memalign(void** block, size_t alignment, size_t size) {
  *block = note(__libc_memalign(alignment, size), __builtin_return_address(0));
  return *block == nullptr ? 12 : 0;
}
void free(void* block) {
  note_free(block);
  __libc_free(block);
}
}

// Avoids malloc, so that the recorded caller is the one that used `new`.
void* operator new(size_t size) {
  void* block = note(__libc_malloc(size), __builtin_return_address(0));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new[](size_t size) {
  void* block = note(__libc_malloc(size), __builtin_return_address(0));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept { free(block); }
void operator delete[](void* block) noexcept { free(block); }
void operator delete(void* block, size_t) noexcept { free(block); }
void operator delete[](void* block, size_t) noexcept { free(block); }

namespace {

std::string library_of(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  const char* slash = std::strrchr(info.dli_fname, '/');
  return slash == nullptr ? info.dli_fname : slash + 1;
}

// Returns the number of faults.
int watch_steps(const gptrain::RunConfig& config, const char* label) {
  using namespace gptrain;
  const auto device = make_cpu_backend(2);
  testing::OneRank rank(config);
  StepProfiler profiler(*device, rank.groups);
  TrainingStep step(plan_rank({config, device->target()}).design, profiler.backend(), rank.groups);
  step.initialize();
  gptrain::testing::RandomBatches batches(config);
  step.run(1e-3, batches);
  profiler.start();
  step.run(1e-3, batches, &profiler);
  profiler.finish(2, 0, {config.precision.compute, 1, 1}, step.design().stages);
  num_callers = 0;
  live_bytes = 0;
  watching = true;
  for (int i = 0; i < 3; ++i) step.run(1e-3, batches);
  watching = false;

  int faults = 0;
  const size_t count = std::min<size_t>(num_callers, callers.size());
  size_t in_onednn = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string library = library_of(callers[i]);
    if (library.starts_with("libdnnl")) {
      ++in_onednn;
    } else {
      ++faults;
      std::printf("%s: an allocation by %s\n", label, library.c_str());
    }
  }
  if (live_bytes != 0) {
    ++faults;
    std::printf("%s: %lld bytes were left behind\n", label, static_cast<long long>(live_bytes));
  }
  std::printf("%s: %zu transient allocations inside oneDNN, %d faults\n", label, in_onednn, faults);
  return faults;
}

}  // namespace

int main() {
  using gptrain::testing::Family;
  using gptrain::testing::small_config;
  // The watch itself must work, or the test proves nothing.
  watching = true;
  delete[] new char[10];
  watching = false;
  if (num_callers == 0) {
    std::printf("allocations cannot be watched here\n");
    return 77;
  }
  int faults = watch_steps(small_config(Family::gpt2, {"batch.micro=2", "model.dropout=0.1"}), "gpt2 fp32");
  faults +=
      watch_steps(small_config(Family::llama, {"precision.compute=bf16", "memory.recompute=block"}), "llama bf16");
  return faults == 0 ? 0 : 1;
}
