#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/normal_lanes.h"
#include "ops/cpu/kernels/philox_lanes.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// Normal numbers computed at a time: few enough for the L1 cache.
constexpr int64_t normal_span = 1024;

template <typename T>
void store_normal_values(const NormalValues& op, T* to, int64_t index, int64_t count) {
  constexpr int64_t same_high_half = int64_t{4} << 32;  // elements whose counters differ only in the low half
  while (count > 0) {
    const int64_t start = index % 4, left = same_high_half - index % same_high_half;
    int64_t part = normal_span - start < count ? normal_span - start : count;
    part = part < left ? part : left;
    const PhiloxCounters counters{op.key.k0, op.key.k1, static_cast<uint32_t>(index / same_high_half), 0, 0};
    uint32_t words[normal_span + 4 * philox_counters];
    float normals[normal_span];
    for (int64_t n = 0; n < start + part; n += 4 * philox_counters)
      philox_words(words + n, counters, static_cast<uint32_t>((index + n) / 4));
    normals_of_words(normals, words, start + part);
#pragma omp simd
    for (int64_t i = 0; i < part; ++i) store(to + i, op.deviation * normals[start + i]);
    to += part;
    index += part;
    count -= part;
  }
}

}  // namespace

void normal_values(const NormalValues& op, int64_t row, int64_t first_column, int64_t end_column) {
  with_type(op.to.dtype, [&](auto type) {
    using T = decltype(type);
    store_normal_values(op, row_of<T>(op.to, row) + first_column, op.first + row * op.row_step + first_column,
                        end_column - first_column);
  });
}

}  // namespace gptrain::ops::GPTRAIN_ISA
