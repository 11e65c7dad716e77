// Initial weights: a pure function of (seed, tensor, global element), whatever the layout.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "model/spec/spec.h"

namespace gptrain {

// What is drawn for a tensor's elements depends on its name, not on its place in the list.
PhiloxKey tensor_key(const TensorSpec& tensor, uint64_t seed, RandomUse use);

// Fills out[0, count) with elements [first, first + count) of the tensor's true shape in row-major order. Normal values
// come from Philox words by Box-Muller, two per pair of words, keyed by the tensor's name.
void initial_values(const TensorSpec& tensor, uint64_t seed, int64_t first, int64_t count, float* out);

}  // namespace gptrain
