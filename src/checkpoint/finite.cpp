#include "checkpoint/finite.h"

#include <cmath>

namespace gptrain::inline checkpoint {

int64_t count_not_finite(const std::byte* data, int64_t count, DType dtype) {
  const auto count_in = [count](const auto* values, auto is_finite) {
    int64_t lost = 0;
    for (int64_t i = 0; i < count; ++i) lost += is_finite(values[i]) ? 0 : 1;
    return lost;
  };
  if (dtype == DType::f32)
    return count_in(reinterpret_cast<const float*>(data), [](float value) { return std::isfinite(value); });
  if (dtype == DType::bf16)
    return count_in(reinterpret_cast<const bf16*>(data), [](bf16 value) { return std::isfinite(to_float(value)); });
  return 0;
}

}  // namespace gptrain::checkpoint
