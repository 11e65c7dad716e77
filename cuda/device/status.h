// Checks of CUDA's return values.
#pragma once

#include <cuda_runtime.h>
#include <string_view>

#include "base/error.h"

namespace gptrain::inline cuda {

// Throws Error(device) unless the call succeeded. `what`: the action, e.g. "copying to the device".
inline void check_cuda(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess)
    throw Error(ExitCode::device, "{}: CUDA error {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace gptrain::cuda
