// Keys of a tensor's random numbers.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "model/spec/spec.h"

namespace gptrain::inline spec {

// RETURNS the Philox key of a tensor's random numbers. The key depends on the tensor's name, not on its position in
// the list.
PhiloxKey tensor_key(const TensorSpec& tensor, uint64_t seed, RandomUse use);

}  // namespace gptrain::spec
