// Sums as Hopper's tensor cores compute them (arXiv 2511.10909), for tests on machines without one: the CPU and the
// host harness round to nearest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace gptrain::testing {

struct TensorCore {
  int64_t products_of_step;
  int bits;         // kept after the binary point of the largest addend, to which all are aligned
  int result_bits;  // kept of the result of a step
};
// The second is for FP8 with fast accumulation, where sums stay in the tensor core.
inline constexpr TensorCore tensor_core_16_bit{16, 25, 23}, tensor_core_fp8{32, 13, 13};

// Truncates towards zero, to a multiple of 2^exponent.
inline double cut_off(double value, int exponent) {
  return std::ldexp(std::trunc(std::ldexp(value, -exponent)), exponent);
}

// Returns the sum over k < depth of a(k) b(k); the products are exact in double.
template <typename A, typename B>
float tensor_core_sum(const TensorCore& core, int64_t depth, const A& a, const B& b) {
  constexpr int least_exponent = -126;
  double sum = 0;
  for (int64_t first = 0; first < depth; first += core.products_of_step) {
    const int64_t end = std::min(depth, first + core.products_of_step);
    int largest = sum == 0 ? least_exponent : std::ilogb(sum);
    for (int64_t k = first; k < end; ++k)
      if (a(k) * b(k) != 0) largest = std::max(largest, std::ilogb(a(k)) + std::ilogb(b(k)));
    double step = cut_off(sum, largest - core.bits);
    for (int64_t k = first; k < end; ++k) step += cut_off(a(k) * b(k), largest - core.bits);
    sum = step == 0 ? 0 : cut_off(step, std::ilogb(step) - core.result_bits);
  }
  return static_cast<float>(sum);
}

}  // namespace gptrain::testing
