// The one function by which kernels are launched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "simt.h"
#include "stream.h"

#ifndef __CUDACC__
#include "host/recording.h"
#endif

namespace gptrain::inline cuda {

struct LaunchShape {
  int64_t blocks = 1;
  unsigned threads = 256;  // per block
  size_t shared_bytes = 0;
};

#ifdef __CUDACC__

// Most blocks of a grid whose blocks can take further rounds: several per multiprocessor of any device.
constexpr int64_t most_grid_blocks = 1024;

// Shared memory that a block may have without an opt-in.
constexpr size_t plain_shared_bytes = 48 << 10;

// Throws Error(machine) if the device does not give a kernel so much shared memory.
void allow_shared_memory(const void* kernel, size_t bytes);
// Throws Error(device) if the device has refused a launch.
void check_launch();
// Does the work of the next function. Asks the current device, once per kernel and shape.
int64_t resident_blocks(const void* kernel, unsigned threads, size_t shared_bytes);

// Returns the number of blocks of this shape that run at a time on the whole device.
template <typename... Parameters>
int64_t resident_blocks(void (*kernel)(Parameters...), const LaunchShape& shape) {
  return resident_blocks(reinterpret_cast<const void*>(kernel), shape.threads, shape.shared_bytes);
}

// Queues the kernel on the stream. Throws Error as allow_shared_memory and check_launch do.
template <typename... Parameters, typename... Arguments>
void launch(Stream stream, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (shape.shared_bytes > plain_shared_bytes)
    allow_shared_memory(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  kernel<<<static_cast<unsigned>(shape.blocks), shape.threads, shape.shared_bytes, stream>>>(
      static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  check_launch();
}

#else

// Small, so that small cases need further rounds too. No result depends on it: chunks, rows and tiles have sums of
// their own, which are added in a fixed order whichever block computed them.
constexpr int64_t most_grid_blocks = 2;

// Small, so that blocks take several rows even of a small matrix.
template <typename... Parameters>
int64_t resident_blocks(void (*)(Parameters...), const LaunchShape&) {
  return 12;
}

template <typename... Parameters, typename... Arguments>
void launch(Stream stream, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  simt::note_launch(reinterpret_cast<const void*>(kernel), shape.blocks, shape.threads, shape.shared_bytes);
  simt::start(stream, [=] {
    simt::run_grid(static_cast<unsigned>(shape.blocks), shape.threads, shape.shared_bytes, stream.seed,
                   [=] { kernel(static_cast<Parameters>(arguments)...); });
  });
}

#endif

}  // namespace gptrain::cuda
