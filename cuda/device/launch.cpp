#include <cstdint>
#include <cuda_runtime.h>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "device/status.h"

namespace gptrain::inline cuda {

void allow_shared_memory(const void* kernel, size_t bytes);
void check_launch();
int64_t resident_blocks(const void* kernel, unsigned threads, size_t shared_bytes);

// Raises a kernel's shared memory limit. The largest size so far stays allowed, so that CUDA is called only for a
// larger one.
void allow_shared_memory(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  const std::lock_guard lock(mutex);
  if (allowed.contains({kernel, device})) return;
  int most = 0;
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "asking for the size of shared memory");
  if (static_cast<int64_t>(bytes) > most) {
    throw Error(ExitCode::machine, "a kernel needs {} bytes of shared memory; this device gives a block {}", bytes,
                most);
  }
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), "asking for a kernel's shared memory");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  most - static_cast<int>(attributes.sharedSizeBytes)),
             "giving a kernel shared memory");
  allowed.insert({kernel, device});
}

void check_launch() { check_cuda(cudaGetLastError(), "starting a kernel"); }

int64_t resident_blocks(const void* kernel, unsigned threads, size_t shared_bytes) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, unsigned, size_t>, int64_t> known;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({kernel, device, threads, shared_bytes});
  if (is_new) {
    int of_multiprocessor = 0, multiprocessors = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_multiprocessor, kernel, static_cast<int>(threads),
                                                             shared_bytes),
               "asking how many blocks of a kernel run at a time");
    check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "asking for the number of multiprocessors");
    found->second = int64_t{1} * of_multiprocessor * multiprocessors;
  }
  return found->second;
}

}  // namespace gptrain::cuda
