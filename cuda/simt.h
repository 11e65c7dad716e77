// What a kernel's source includes: CUDA's built-ins on a device, or on a machine without one their host equivalents.
//
// Kernels are plain SIMT CUDA. Two things go through here so that the same source runs on both: shared memory comes
// from `shared<T>()`, and every launch goes through `launch`.
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace gptrain {

// The block's dynamic shared memory, of the size that `launch` was given.
template <typename T>
__device__ T& shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return *reinterpret_cast<T*>(dynamic_shared_memory);
}

}  // namespace gptrain

#else

#include "host/simt.h"

#endif
