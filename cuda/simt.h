// Included by every kernel: CUDA's built-ins on a device, their host equivalents elsewhere.
//
// Kernels are plain SIMT CUDA. Two things go through this header so that the same source runs on both: shared memory
// comes from `shared<T>()`, and every launch from `launch`.
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace gptrain::inline cuda {

// Returns the block's dynamic shared memory, of the size given to `launch`.
template <typename T>
__device__ T& shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
  return *reinterpret_cast<T*>(dynamic_shared_memory);
}

}  // namespace gptrain::cuda

#else

#include "host/simt.h"

#endif
