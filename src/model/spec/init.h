// Initial weights: a pure function of (seed, tensor, global element), the same on every layout.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "model/spec/spec.h"

namespace gptrain::inline spec {

// RETURNS the Philox key of a tensor's random numbers. The key depends on the tensor's name, not on its position in
// the list.
PhiloxKey tensor_key(const TensorSpec& tensor, uint64_t seed, RandomUse use);

// Fills out[0, count) with elements [first, first + count) of the tensor's true shape in row-major order. Normal values
// come from Philox words by Box-Muller, two per pair of words, keyed by the tensor's name.
void initial_values(const TensorSpec& tensor, uint64_t seed, int64_t first, int64_t count, float* out,
                    int num_threads = 1);

}  // namespace gptrain::spec
