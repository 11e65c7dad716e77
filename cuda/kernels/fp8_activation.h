// Activations whose output is written as FP8 copies only (ops/activation_ops.h).
#pragma once

#include <cstddef>

#include "ops/activation_ops.h"
#include "stream.h"

namespace gptrain::inline cuda {

// REQUIRE: op.fp8 is given. `scratch`: gpu_scratch_bytes(op).
void run_to_fp8(const ActivationForward& op, Stream stream, std::byte* scratch);
void run_to_fp8(const ActivationBackward& op, Stream stream, std::byte* scratch);

}  // namespace gptrain::cuda
