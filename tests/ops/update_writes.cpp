#include "update_writes.h"

#include <cmath>
#include <fmt/format.h>

#include "reference.h"

namespace gptrain::ops_test {

std::vector<UpdateSegment> segments_of(int64_t size) {
  const IndexMap row{.origin = 0, .first = 0, .cols = 1, .stride = 1};
  return {{.offset = 0, .count = 1, .decay = 1, .key = {1, 2}, .map = row},
          {.offset = 64, .count = 13, .decay = 0, .key = {3, 4}, .map = row},
          {.offset = 128, .count = size, .decay = 1, .key = {5, 6}, .map = row},
          {.offset = size + 192, .count = 31, .decay = 1, .rate_factor = 0.25F, .key = {7, 8}, .map = row}};
}

std::vector<UpdateSegment> segments_of_tensors(int64_t size, int64_t first_tensor) {
  std::vector<UpdateSegment> segments = segments_of(size);
  segments.push_back({.offset = size + 224, .count = 9, .decay = 1, .key = {9, 1}, .map = segments.front().map});
  const std::vector<int64_t> tensors = {0, 1, 0, 2, 3};
  for (size_t i = 0; i < segments.size(); ++i) segments[i].tensor = first_tensor + tensors[i];
  return segments;
}

UpdatedWeights::UpdatedWeights(Trial& trial, int64_t elements, Writes writes, DType dtype)
    : updated(trial.in_out(writes == Writes::weights ? DType::bf16 : DType::f32, 1, elements)),
      ema(trial.in_out(DType::f32, 1, elements)),
      trial_(trial),
      writes_(writes),
      dtype_(dtype),
      beside_(trial.in_out(dtype, 1, elements)),
      beside_before_(beside_.values()),
      ema_before_(ema.values()) {}

void UpdatedWeights::expect(const std::vector<UpdateSegment>& changed, const std::vector<double>& expected,
                            const std::vector<double>& plain) const {
  if (writes_ != Writes::weights) trial_.expect_close("master", updated, expected, plain, 3, 0x1p-24);
  std::vector<double> beside = beside_before_;
  int64_t outside = 0;
  for (const UpdateSegment& segment : changed) {
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const double exact = expected[static_cast<size_t>(i)], value = updated.at(0, i);
      const double unit = std::ldexp(1.0, std::ilogb(exact) - 7) + std::abs(exact) * 0x1p-20 + 0x1p-24;
      if (writes_ == Writes::weights) outside += std::abs(value - exact) > unit ? 1 : 0;
      if (writes_ == Writes::masters_and_weights) beside[static_cast<size_t>(i)] = rounded(value, dtype_);
    }
  }
  trial_.expect_true(outside == 0, fmt::format("{} weights are more than a place away", outside));
  trial_.expect_equal("weights", beside_, beside);
}

void UpdatedWeights::expect_average(const std::vector<double>& expected, const std::vector<double>& plain) const {
  trial_.expect_close("ema", ema, expected, plain, 3, 0x1p-24);
}

}  // namespace gptrain::ops_test
