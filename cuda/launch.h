// The one way by which kernels start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "simt.h"
#include "stream.h"

#ifndef __CUDACC__
#include "host/recording.h"
#endif

namespace gptrain {

struct LaunchShape {
  int64_t blocks = 1;
  unsigned threads = 256;  // of a block
  size_t shared_bytes = 0;
};

#ifdef __CUDACC__

// What a grid has at most where blocks take further rounds: several for each multiprocessor of any device.
constexpr int64_t most_grid_blocks = 1024;

// What a block may have of shared memory without being asked for.
constexpr size_t plain_shared_bytes = 48 << 10;

// Throws Error (device) for a kernel that may not have so much shared memory.
void allow_shared_memory(const void* kernel, size_t bytes);
// Throws Error (device) for a launch that the device has refused.
void check_launch();
// Of the current device; asked once of each kernel and shape.
int64_t resident_blocks(const void* kernel, unsigned threads, size_t shared_bytes);

// How many blocks of the shape's size run at a time on the whole device.
template <typename... Parameters>
int64_t resident_blocks(void (*kernel)(Parameters...), const LaunchShape& shape) {
  return resident_blocks(reinterpret_cast<const void*>(kernel), shape.threads, shape.shared_bytes);
}

// Queues the kernel on the stream.
template <typename... Parameters, typename... Arguments>
void launch(Stream stream, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (shape.shared_bytes > plain_shared_bytes)
    allow_shared_memory(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  kernel<<<static_cast<unsigned>(shape.blocks), shape.threads, shape.shared_bytes, stream>>>(
      static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  check_launch();
}

#else

// Few: so that small cases take further rounds, too. No result depends on it: chunks, rows and tiles have sums of their
// own, and these are added in one order, whichever block took them.
constexpr int64_t most_grid_blocks = 2;

// Few: so that blocks have several rows of a small matrix, too.
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

}  // namespace gptrain
