// Fills memory with zeros, or with random numbers for timing matrix products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"

namespace gptrain::inline step {

// Returns random numbers of 2 bytes each, on which products can be timed and checked: as many as `most_bytes` bytes
// hold, at most 2^21 - 9. They have either sign, and absolute values in [0.5, 1.5) as bf16 or f32 and in [1.75, 2) as
// f16; as FP8 they are finite. (On zeros a product can be faster than in a run.) Different keys give unrelated numbers,
// and a long memory repeats 2^21 - 9 of them: a prime, so that no two rows of a matrix are equal in it. As signs vary,
// no sum of products has terms of one sign only, which tensor cores round worst.
std::vector<std::byte> numbers_for_products(uint32_t key, int64_t most_bytes);

// Fills `bytes` of the backend's memory with repetitions of the pattern, which is not empty. `copy_queue`: the device's
// queue, so that the pattern is uploaded once and then copied on the device, queued among the ops; null if the device's
// memory is the host's.
void fill_memory(Backend& backend, SideQueue* copy_queue, std::byte* memory, int64_t bytes,
                 const std::vector<std::byte>& pattern);
void zero_memory(Backend& backend, SideQueue* copy_queue, std::byte* memory, int64_t bytes);

}  // namespace gptrain::step
