#include "launch.h"

#include <cuda_runtime.h>

#include "base/error.h"

namespace gptrain {

void check_launch() {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    throw Error(ExitCode::device, "a kernel could not be started: {}", cudaGetErrorString(status));
}

}  // namespace gptrain
