// Ops on the largest elements of a vector.
#include <array>
#include <bit>
#include <cstdint>

#include "ops/cpu/cpu_ops.h"

namespace gptrain::inline ops {
namespace {

uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffU; }

// The magnitude of the k-th largest element, as bits, and the number of elements with larger ones.
struct Threshold {
  uint32_t bits;
  int64_t larger;
};

// Finds the bits from the highest digit to the lowest, each by counting the elements that have the digits before it.
Threshold find_threshold(const float* x, int64_t n, int64_t k) {
  constexpr std::array<int, 3> shifts = {20, 10, 0};
  constexpr uint32_t digits = 1U << 11;
  Threshold found{0, 0};
  uint32_t known = 0;  // mask of the digits that are found
  for (const int shift : shifts) {
    std::array<int64_t, digits> counts{};
    const uint32_t width = shift == 20 ? digits : digits / 2;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t bits = magnitude(x[i]);
      if ((bits & known) == found.bits) ++counts[bits >> shift & (width - 1)];
    }
    uint32_t digit = width - 1;
    while (found.larger + counts[digit] < k) found.larger += counts[digit--];
    found.bits |= digit << shift;
    known |= (width - 1) << shift;
  }
  return found;
}

}  // namespace

void cpu_run(const SelectLargest& op, const CpuContext&) {
  const auto* const x = op.x.as<const float>();
  auto* const indices = op.indices.as<int32_t>();
  auto* const values = op.values.as<float>();
  const int64_t k = op.indices.cols;
  if (k == 0) return;
  const Threshold threshold = find_threshold(x, op.x.cols, k);
  int64_t equal = k - threshold.larger;  // elements of the threshold's magnitude that are still to be selected
  int64_t next = 0;
  for (int64_t i = 0; next < k; ++i) {
    const uint32_t bits = magnitude(x[i]);
    if (bits < threshold.bits || (bits == threshold.bits && equal-- <= 0)) continue;
    indices[next] = static_cast<int32_t>(i);
    values[next++] = x[i];
  }
}

void cpu_run(const AddAt& op, const CpuContext&) {
  const auto* const indices = op.indices.as<const int32_t>();
  const auto* const values = op.values.as<const float>();
  auto* const to = op.to.as<float>();
  for (int64_t i = 0; i < op.indices.cols; ++i) to[indices[i]] += op.factor * values[i];
}

}  // namespace gptrain::ops
