// Ops on the largest elements of a vector and on sketches of it.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

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

void cpu_run(const TakeAt& op, const CpuContext&) {
  const auto* const indices = op.indices.as<const int32_t>();
  for (int64_t i = 0; i < op.indices.cols; ++i) op.values.as<float>()[i] = op.from.as<const float>()[indices[i]];
}

void cpu_run(const CountSketch& op, const CpuContext& context) {
  const auto* const x = op.x.as<const float>();
  parallel_shares(context.num_threads, op.table.rows, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      float* const row = op.table.as<float>() + r * op.table.stride;
      std::fill_n(row, op.table.cols, 0.0F);
      const SketchRow hash(op.key, op.state->updates, r);
      for (int64_t i = 0; i < op.x.cols; ++i) {
        const SketchRow::Place place = hash.of(i, op.table.cols);
        row[place.column] += place.is_negative ? -x[i] : x[i];
      }
    }
  });
}

void cpu_run(const EstimateSketch& op, const CpuContext& context) {
  const int64_t rows = op.table.rows;
  std::vector<SketchRow> hashes;
  for (int64_t r = 0; r < rows; ++r) hashes.emplace_back(op.key, op.state->updates, r);
  parallel_shares(context.num_threads, op.estimates.cols, [&](int64_t first, int64_t end) {
    std::array<float, most_sketch_rows> sorted{};
    for (int64_t i = first; i < end; ++i) {
      for (int64_t r = 0; r < rows; ++r) {
        const SketchRow::Place place = hashes[r].of(i, op.table.cols);
        const float entry = op.table.as<const float>()[r * op.table.stride + place.column];
        const float value = place.is_negative ? -entry : entry;
        int64_t at = r;
        for (; at > 0 && value < sorted[at - 1]; --at) sorted[at] = sorted[at - 1];
        sorted[at] = value;
      }
      const float upper = sorted[rows / 2];
      op.estimates.as<float>()[i] = rows % 2 == 1 ? upper : 0.5F * (sorted[rows / 2 - 1] + upper);
    }
  });
}

}  // namespace gptrain::ops
