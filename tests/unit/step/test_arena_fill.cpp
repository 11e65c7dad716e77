#include <cmath>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/fp8.h"
#include "catch.h"
#include "step/arena_fill.h"

using namespace gptrain;

namespace {

constexpr int64_t gibibyte = int64_t{1} << 30;

// Returns how many of `count` bytes from these positions have the same sign as FP8 numbers.
int64_t same_signs(const std::vector<std::byte>& a, int64_t at_a, const std::vector<std::byte>& b, int64_t at_b,
                   int64_t count) {
  int64_t same = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::byte x = a[static_cast<size_t>(at_a + i) % a.size()], y = b[static_cast<size_t>(at_b + i) % b.size()];
    same += ((x ^ y) & std::byte{0x80}) == std::byte{0} ? 1 : 0;
  }
  return same;
}

}  // namespace

TEST_CASE("numbers for products are of either sign, finite in every type, and small memory gets what fits") {
  const std::vector<std::byte> numbers = numbers_for_products(3, 4096);
  REQUIRE(numbers.size() == 4096);
  int64_t negative = 0;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    const auto low = std::to_integer<uint8_t>(numbers[i]), high = std::to_integer<uint8_t>(numbers[i + 1]);
    const auto word = static_cast<uint16_t>(high << 8 | low);
    CHECK(std::abs(to_float(bf16{word})) >= 0.5F);
    CHECK(std::abs(to_float(bf16{word})) < 1.5F);
    for (const uint8_t byte : {low, high}) {
      CHECK(std::isfinite(to_float(f8e4m3{byte})));
      CHECK(std::isfinite(to_float(f8e5m2{byte})));
    }
    negative += to_float(bf16{word}) < 0 ? 1 : 0;
  }
  CHECK(negative > 2048 / 2 - 200);
  CHECK(negative < 2048 / 2 + 200);
}

TEST_CASE("no row of one matrix has the signs of a row of another, in this memory and in that of another key") {
  const std::vector<std::byte> weights = numbers_for_products(0, gibibyte),
                               workspace = numbers_for_products(8, gibibyte);
  const auto period = static_cast<int64_t>(weights.size());
  for (const int64_t width : {768, 1600, 2048, 4096, 6400, 16384}) {
    const auto most = static_cast<int64_t>(6 * std::sqrt(static_cast<double>(width)));  // largest distance from half
    for (int64_t row = 0; row < 100'000; row += 997) {
      const int64_t at = row * width;
      CHECK(std::abs(same_signs(weights, at, workspace, at, width) - width / 2) < most);
      if (row > 0) CHECK(std::abs(same_signs(weights, 0, weights, at, width) - width / 2) < most);
    }
    for (int64_t row = 1; row < 2'000'000; ++row)
      if (row * width % period == 0) FAIL("row " << row << " of " << width << " elements repeats the first");
  }
}
