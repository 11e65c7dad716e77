// Attention on the CPU: tiled, online softmax, float accumulation; probabilities are recomputed in the backward pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"

namespace gptrain {

// Scratch that the ops need on any CPU. Forward: per thread, some tiles of the head size. Backward: per thread, about
// five times tokens * head size floats.
int64_t cpu_scratch_bytes(const AttentionForward& op, int num_threads);
int64_t cpu_scratch_bytes(const AttentionBackward& op, int num_threads);

// Run on `num_threads` OpenMP threads. Operands are as ops.h says (the caller checks shapes). Results do not depend on
// the number of threads. Backward is parallel over sequences and key/value heads. Throw Error(device) when scratch is
// too small.
void cpu_attention_forward(const AttentionForward& op, int num_threads, std::byte* scratch, int64_t scratch_bytes);
void cpu_attention_backward(const AttentionBackward& op, int num_threads, std::byte* scratch, int64_t scratch_bytes);

}  // namespace gptrain
