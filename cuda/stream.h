// The queue that kernels and copies of one backend run in.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(GPTRAIN_CUDA_DEVICE)

struct CUstream_st;

namespace gptrain {
using Stream = CUstream_st*;
}

#else

namespace gptrain {

// On the host harness a launch has ended when it returns. The seed fixes the order in which a block's threads run.
struct Stream {
  uint64_t seed = 1;
};

}  // namespace gptrain

#endif
