// What CUDA's calls return.
#pragma once

#include <cuda_runtime.h>
#include <string_view>

#include "base/error.h"

namespace gptrain {

// Throws Error (device) unless the call has succeeded. `what`: the thing that was done, "copying to the device".
inline void check_cuda(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess)
    throw Error(ExitCode::device, "{}: CUDA error {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace gptrain
