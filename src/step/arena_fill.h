// What memory is filled with before anything has been computed into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"

namespace gptrain {

// Numbers on which products can be timed and checked, up to `most_bytes`, which is even: of either sign in [0.5, 1.5),
// as bf16, f16 and f32, and none that is not finite as FP8. (On zeros a product can be faster than it is in a run.)
// Those of two keys are unrelated, and there is a prime number of them, if there is room: so that no row of one matrix
// holds the same numbers as a row of another, and no sum of products is of one sign, which tensor cores round worst.
std::vector<std::byte> numbers_for_products(uint32_t key, int64_t most_bytes);

// Writes the pattern over the memory of the backend, as often as it fits. It is uploaded once where the device copies,
// by `copies`, which is null where the device's memory is the host's.
void fill_memory(Backend& backend, SideQueue* copies, std::byte* memory, int64_t bytes,
                 const std::vector<std::byte>& pattern);
void zero_memory(Backend& backend, SideQueue* copies, std::byte* memory, int64_t bytes);

}  // namespace gptrain
