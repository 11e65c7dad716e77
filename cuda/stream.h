// The queue in which one backend's kernels and copies run.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(GPTRAIN_CUDA_DEVICE)

struct CUstream_st;

namespace gptrain::inline cuda {

using Stream = CUstream_st*;

}  // namespace gptrain::cuda

#else

namespace gptrain::simt {

class DeviceQueues;

}  // namespace gptrain::simt

namespace gptrain::inline cuda {

// On the host harness: a queue of a device, or of none (null), in which case a launch has ended when it returns. The
// seed determines the order in which a block's threads run.
struct Stream {
  uint64_t seed = 1;
  simt::DeviceQueues* device = nullptr;
  int queue = 0;
};

}  // namespace gptrain::cuda

#endif
