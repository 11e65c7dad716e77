// CUDA's built-ins for kernels on the host: blocks run one after another, their threads as fibers.
//
// A thread runs until it reaches a barrier, a warp function, or its end; then another continues, in a random order
// determined by a seed. Behaviour that a device leaves undefined is a fault with file and line: a thread that exits
// while others wait at a barrier, threads of a block at different barriers, a warp function that not all lanes reach
// with the same mask. ThreadSanitizer finds races: it sees every CUDA thread as a thread, ordered only by barriers.
// AddressSanitizer finds accesses out of bounds: shared memory is allocated anew and poisoned for every block.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace gptrain::simt {

// A kernel did something that a device leaves undefined.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr unsigned warp_size = 32;

// Position of the running thread in the grid. Valid inside a kernel only.
struct ThreadPosition {
  dim3 thread, block, block_size, grid_size;
  std::byte* shared_memory = nullptr;
  size_t shared_bytes = 0;
};
const ThreadPosition& position();

using Site = std::source_location;

void barrier(const Site& site);
void warp_barrier(uint32_t mask, const Site& site);
// Gives `value` to the lanes of `mask`, all of which must call it, and returns the values of the warp's lanes.
const std::array<uint64_t, warp_size>& exchange(uint32_t mask, uint64_t value, const Site& site);
unsigned lane();

// Runs all blocks of a grid. `seed` determines the order of threads. Throws Fault.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, uint64_t seed, const std::function<void()>& kernel);

template <typename T>
T shuffle(uint32_t mask, T value, unsigned source, const Site& site) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const uint64_t found = exchange(mask, bits, site)[source % warp_size];
  std::memcpy(&value, &found, sizeof value);
  return value;
}

}  // namespace gptrain::simt

#define threadIdx (::gptrain::simt::position().thread)
#define blockIdx (::gptrain::simt::position().block)
#define blockDim (::gptrain::simt::position().block_size)
#define gridDim (::gptrain::simt::position().grid_size)

inline void __syncthreads(const gptrain::simt::Site& site = gptrain::simt::Site::current()) {
  gptrain::simt::barrier(site);
}
inline void __syncwarp(uint32_t mask = 0xffffffff, const gptrain::simt::Site& site = gptrain::simt::Site::current()) {
  gptrain::simt::warp_barrier(mask, site);
}
template <typename T>
T __shfl_sync(uint32_t mask, T value, unsigned source,
              const gptrain::simt::Site& site = gptrain::simt::Site::current()) {
  return gptrain::simt::shuffle(mask, value, source, site);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, unsigned lanes,
                  const gptrain::simt::Site& site = gptrain::simt::Site::current()) {
  return gptrain::simt::shuffle(mask, value, gptrain::simt::lane() ^ lanes, site);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned lanes,
                   const gptrain::simt::Site& site = gptrain::simt::Site::current()) {
  const unsigned source = gptrain::simt::lane() + lanes;
  return gptrain::simt::shuffle(mask, value, source < gptrain::simt::warp_size ? source : gptrain::simt::lane(), site);
}

// Returns the number at `address` before it is raised to `value`.
inline int atomicMax(int* address, int value) {
  int before = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (before < value &&
         !__atomic_compare_exchange_n(address, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}

namespace gptrain::inline cuda {

template <typename T>
T& shared() {
  if (sizeof(T) > simt::position().shared_bytes) throw simt::Fault("the launch gives less shared memory than is used");
  return *reinterpret_cast<T*>(simt::position().shared_memory);
}

}  // namespace gptrain::cuda
