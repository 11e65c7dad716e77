// Normal numbers of many random words. Included only by sources that are compiled once per instruction set; everything
// has internal linkage.
#pragma once

#include <cstdint>

#include "ops/normal_values.h"

namespace gptrain::inline ops {
namespace {

// Computes two normal numbers of each two words (normal_pair). An odd count is taken as the next even one.
inline void normals_of_words(float* normals, const uint32_t* words, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i += 2) {
    const NormalPair pair = normal_pair(words[i], words[i + 1]);
    normals[i] = pair.first;
    normals[i + 1] = pair.second;
  }
}

}  // namespace
}  // namespace gptrain::ops
