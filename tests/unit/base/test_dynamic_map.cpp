// The dynamic map of 8-bit optimizer state: its values are the published ones, and every number is coded as the nearest
// value.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "base/dynamic_map.h"
#include "catch.h"

using namespace gptrain;

namespace {

// create_dynamic_map of bitsandbytes, of eight bits of which seven are exponent bits: in each decade the midpoints
// between neighbours of an even division from 0.1 to 1.
std::vector<double> published_map(bool has_sign) {
  std::vector<double> values{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int cells = has_sign ? 1 << i : 2 << i;
    for (int cell = 0; cell < cells; ++cell) {
      const double lower = 0.1 + 0.9 * cell / cells, upper = 0.1 + 0.9 * (cell + 1) / cells;
      const double value = std::pow(10.0, i - 6) * (lower + upper) / 2;
      values.push_back(value);
      if (has_sign) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

template <bool has_sign>
std::vector<float> own_map() {
  std::vector<float> values;
  for (int code = 0; code < 256; ++code) values.push_back(DynamicMap<has_sign>::value(code));
  return values;
}

template <bool has_sign>
void check_map() {
  const std::vector<float> own = own_map<has_sign>();
  const std::vector<double> published = published_map(has_sign);
  REQUIRE(published.size() == 256);
  for (size_t i = 0; i < 256; ++i) {
    CHECK(std::abs(own[i] - published[i]) <= 0x1p-24 * std::abs(published[i]));
    CHECK((i == 0 || own[i] > own[i - 1]));
  }
}

// Checks that x gets the nearest value, the larger magnitude of two equally near ones, or that a border is that close.
template <bool has_sign>
void check_code(float x) {
  static const auto table = make_encode_table<has_sign>();
  static const std::vector<float> map = own_map<has_sign>();
  const uint8_t code = code_of(table, x, 1.0F);
  const auto distance = [x](float value) { return std::abs(static_cast<double>(value) - static_cast<double>(x)); };
  double least = 2;
  for (const float value : map) least = std::min(least, distance(value));
  INFO(x << " has code " << int{code});
  // Without a sign only zero becomes zero.
  if (!has_sign && x < map[1]) {
    CHECK(code == 1);
    return;
  }
  CHECK(distance(map[code]) <= least + 4e-5 * std::abs(static_cast<double>(x)));
}

}  // namespace

TEST_CASE("the dynamic maps are those of bitsandbytes") {
  check_map<true>();
  check_map<false>();
  const std::vector<float> with_sign = own_map<true>(), without = own_map<false>();
  CHECK(with_sign[zero_code] == 0);
  CHECK(with_sign.back() == 1);
  CHECK(with_sign.front() == -0.99296875F);
  CHECK(with_sign[128] == 5.5e-7F);
  CHECK(without.front() == 0);
  CHECK(without[1] == 3.25e-7F);
  CHECK(without[254] == 0.996484375F);
  CHECK(without.back() == 1);
}

TEST_CASE("a number's code is that of the nearest value") {
  for (int code = 0; code < 256; ++code) {
    CHECK(code_of(make_encode_table<true>(), DynamicMap<true>::value(code), 1.0F) == code);
    CHECK(code_of(make_encode_table<false>(), DynamicMap<false>::value(code), 1.0F) == code);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const double exponent = std::uniform_real_distribution<double>(-8.5, 0)(random);
    const auto x = static_cast<float>(std::pow(10.0, exponent));
    check_code<true>(x);
    check_code<true>(-x);
    check_code<false>(x);
  }
  // Checks each border, and the number below it.
  for (int n = 1; n <= 128; ++n) {
    const uint32_t bits = DynamicMap<true>::border_bits(n);
    CHECK(code_of(make_encode_table<true>(), std::bit_cast<float>(bits), 1.0F) == zero_code + n);
    CHECK(code_of(make_encode_table<true>(), std::bit_cast<float>(bits - 1), 1.0F) == zero_code + n - 1);
  }
  CHECK(code_of(make_encode_table<false>(), 1e-20F, 1.0F) == 1);
  CHECK(code_of(make_encode_table<false>(), 0.0F, 1.0F) == 0);
  CHECK(code_of(make_encode_table<true>(), -1.0F, 1.0F) == 0);
  CHECK(code_of(make_encode_table<true>(), std::nextafter(1.0F, 2.0F), 1.0F) == 255);
}

TEST_CASE("a block of numbers that are too small, or not finite, is zero") {
  CHECK(block_scale(0.5F) == 0.5F);
  CHECK(block_scale(least_block_scale) == least_block_scale);
  CHECK(block_scale(least_block_scale / 2) == 0);
  CHECK(block_scale(INFINITY) == 0);
  CHECK(block_scale(NAN) == 0);
  CHECK(inverse_of_scale(0) == 0);
}
