// Why the CUDA backend has no device.
#pragma once

#include <string>

namespace gptrain {

// For a user, where num_cuda_devices() (ops/backend.h) is 0: that this process sees no device, and what the driver says,
// or that this build has no CUDA.
std::string why_no_cuda_device();

}  // namespace gptrain
