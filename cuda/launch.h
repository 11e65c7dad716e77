// The one way by which kernels start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "simt.h"

namespace gptrain {

struct LaunchShape {
  int64_t blocks = 1;
  unsigned threads = 256;  // of a block
  size_t shared_bytes = 0;
};

#ifdef __CUDACC__

using Stream = cudaStream_t;

// Throws Error (device) for a launch that the device has refused.
void check_launch();

// Queues the kernel on the stream.
template <typename... Parameters, typename... Arguments>
void launch(Stream stream, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  kernel<<<static_cast<unsigned>(shape.blocks), shape.threads, shape.shared_bytes, stream>>>(
      static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  check_launch();
}

#else

// The seed that fixes the order of threads.
struct Stream {
  uint64_t seed = 1;
};

template <typename... Parameters, typename... Arguments>
void launch(Stream stream, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  simt::run_grid(static_cast<unsigned>(shape.blocks), shape.threads, shape.shared_bytes, stream.seed,
                 [=] { kernel(static_cast<Parameters>(arguments)...); });
}

#endif

}  // namespace gptrain
