#include "product_check.h"

#include <fmt/format.h>

namespace gptrain::inline cuda {
namespace {

// Returns the bias gradient [1, m], the sums over the rows of the operand [depth, m], as a product: a row of ones times
// the operand.
ExpectedProduct sums_of_rows(const Matrix& factor, const Matrix& sums) {
  return {.product = {.a = Matrix(nullptr, factor.dtype, 1, factor.rows), .b = factor, .bias = {}, .c = sums}};
}

}  // namespace

std::string ProductCheck::fault(const ExpectedProduct& expected, const Matrix& bias_gradient,
                                const std::function<void()>& run, std::byte* scratch) const {
  const std::vector<Bits> first = run_and_take_bits(expected, bias_gradient, run, scratch);
  float worst = worst_distance(expected, scratch);
  if (bias_gradient.given())
    worst = std::max(worst, worst_distance(sums_of_rows(expected.product.a, bias_gradient), scratch));
  uint64_t unwritten = 0;
  for (const Bits& bits : first) unwritten += bits.unwritten;
  if (unwritten > 0) return fmt::format("it leaves {} elements of the result as they were", unwritten);
  // The comparison is false for NaN, which is thus a fault.
  if (!(worst <= 1)) return fmt::format("its result is off by {:.3g} times what rounding explains", worst);
  if (run_and_take_bits(expected, bias_gradient, run, scratch) != first)
    return "it gives other bits when it runs again";
  return "";
}

std::vector<ProductCheck::Bits> ProductCheck::run_and_take_bits(const ExpectedProduct& expected,
                                                                const Matrix& bias_gradient,
                                                                const std::function<void()>& run,
                                                                std::byte* scratch) const {
  std::vector<Matrix> results{expected.product.c};
  if (expected.end == ProductEnd::gelu) results.push_back(expected.pre_activation);
  if (bias_gradient.given()) results.push_back(bias_gradient);
  for (const Matrix& result : results)
    start_result(result, expected.product.accumulate && result.data == expected.product.c.data, stream_);
  run();
  std::vector<Bits> bits;
  for (const Matrix& result : results) bits.push_back(bits_of(result, scratch));
  return bits;
}

ProductCheck::Bits ProductCheck::bits_of(const Matrix& result, std::byte* scratch) const {
  auto* const device = reinterpret_cast<Fingerprint*>(scratch);
  std::vector<Fingerprint> parts(static_cast<size_t>(take_fingerprint(result, device, stream_)));
  download_(parts.data(), device, static_cast<int64_t>(parts.size() * sizeof(Fingerprint)));
  Bits bits;
  for (const Fingerprint& part : parts) {
    bits.sum += part.sum;
    bits.unwritten += part.unwritten;
  }
  return bits;
}

float ProductCheck::worst_distance(const ExpectedProduct& expected, std::byte* scratch) const {
  auto* const device = reinterpret_cast<TileDistance*>(scratch);
  std::vector<TileDistance> distances(static_cast<size_t>(compare_tiles(expected, device, stream_)));
  download_(distances.data(), device, static_cast<int64_t>(distances.size() * sizeof(TileDistance)));
  return *std::max_element(distances.begin(), distances.end());
}

std::string why_unserved(const std::string& last_fault) {
  if (last_fault.empty()) return "cuBLASLt has no algorithm for it on this device";
  return "all algorithms that cuBLASLt has for it were rejected, the last one because " + last_fault;
}

}  // namespace gptrain::cuda
