// Reason why the CUDA backend finds no device.
#pragma once

#include <string>

namespace gptrain::inline ops {

// RETURNS a message for the user: this process sees no device, with the driver's error, or this build has no CUDA.
// REQUIRES: num_cuda_devices() (ops/backend.h) returned 0.
std::string why_no_cuda_device();

}  // namespace gptrain::ops
