// Shared by the cases: roundings, an independent dropout, and checks of analytic gradients.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "harness.h"

namespace gptrain::ops_test {

// Types of compute and of the residual stream.
struct DTypes {
  DType compute;
  DType residual;
};

inline constexpr std::array dtype_pairs{DTypes{DType::f32, DType::f32}, DTypes{DType::bf16, DType::bf16},
                                        DTypes{DType::bf16, DType::f32}, DTypes{DType::f16, DType::f16},
                                        DTypes{DType::f16, DType::f32}};
inline constexpr std::array compute_dtypes{DType::f32, DType::bf16, DType::f16};

// Returns true if an f16 case is skipped: f16 uses bf16's kernels with other conversions, so every third shape is
// enough.
constexpr bool is_left_out(DType dtype, int64_t index) { return dtype == DType::f16 && index % 3 != 0; }

std::string name_of(const DTypes& dtypes);  // "C=bf16 R=f32"

double rounded(double value, DType dtype);
std::vector<double> rounded(std::vector<double> values, DType dtype);

template <typename Real>
std::vector<Real> to_real(const std::vector<double>& values) {
  return std::vector<Real>(values.begin(), values.end());
}

template <typename Real>
std::vector<double> to_double(const std::vector<Real>& values) {
  return std::vector<double>(values.begin(), values.end());
}

// GELU in its tanh form, and its derivative.
template <typename Real>
Real tanh_argument(Real x) {
  return static_cast<Real>(std::sqrt(2 / M_PI)) * (x + static_cast<Real>(0.044715) * x * x * x);
}

template <typename Real>
Real gelu_tanh(Real x) {
  return x / 2 * (1 + std::tanh(tanh_argument(x)));
}

template <typename Real>
Real gelu_tanh_slope(Real x) {
  const Real t = std::tanh(tanh_argument(x));
  const Real inner = static_cast<Real>(std::sqrt(2 / M_PI)) * (1 + 3 * static_cast<Real>(0.044715) * x * x);
  return (1 + t) / 2 + x / 2 * (1 - t * t) * inner;
}

// Philox4x32-10 by its definition (SC 2011), with 64-bit products.
std::array<uint32_t, 4> reference_philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Dropout, with the properties that the reference needs. Sample numbers are above 2^32, so that both halves are used.
struct DropoutCase {
  DropoutCase(Trial& trial, double p, int64_t batch, int64_t sequence_length);

  // Returns 0 or 1 / (1 - p), for an element of an [N, cols] operand.
  double factor(int64_t row, int64_t column) const;

  Dropout dropout;
  int64_t sequence_length;
  std::vector<int64_t> sample_ids;
};

// Returns the largest difference between `gradient` and the central differences of `function` at x, relative to the
// gradient's largest element (or 1, if that is larger).
double difference_from_numeric(const std::function<double(const std::vector<double>&)>& function,
                               const std::vector<double>& x, const std::vector<double>& gradient);

}  // namespace gptrain::ops_test
