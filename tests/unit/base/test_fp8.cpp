#include <cmath>
#include <limits>
#include <vector>

#include "base/fp8.h"
#include "catch.h"

using namespace gptrain;

namespace {

template <typename T>
T code(int bits) {
  return {static_cast<uint8_t>(bits)};
}

// Value by the format's definition (arXiv 2209.05433, table 1), without the sign.
template <typename T>
double defined_value(int bits) {
  const int exponent = bits >> T::mantissa_bits;
  const double fraction = std::ldexp(bits & ((1 << T::mantissa_bits) - 1), -T::mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - T::exponent_bias)
                       : std::ldexp(1 + fraction, exponent - T::exponent_bias);
}

template <typename T>
void check_all_codes() {
  for (int bits = 0; bits < 256; ++bits) {
    INFO(bits);
    const float value = to_float(code<T>(bits));
    const int magnitude = bits & 0x7f;
    if (magnitude > T::largest_code) {
      const bool infinite = std::is_same_v<T, f8e5m2> && magnitude == 0x7c;
      CHECK(std::isinf(value) == infinite);
      CHECK(std::isnan(value) == !infinite);
      CHECK(to_fp8<T>(value).bits == (infinite ? (bits & 0x80) + T::largest_code : 0x7f));
      continue;
    }
    CHECK(std::abs(static_cast<double>(value)) == defined_value<T>(magnitude));
    CHECK(std::signbit(value) == (bits >= 128));
    CHECK(to_fp8<T>(value).bits == bits);
  }
}

// Checks the midpoint between two neighbours, and the f32 number on either side of it.
template <typename T>
void check_all_halves() {
  for (int bits = 0; bits < T::largest_code; ++bits) {
    INFO(bits);
    const auto half = static_cast<float>((defined_value<T>(bits) + defined_value<T>(bits + 1)) / 2);
    const int even = bits + bits % 2;
    for (const int sign : {0, 0x80}) {
      const auto rounded = [&](float x) { return to_fp8<T>(sign != 0 ? -x : x).bits; };
      CHECK(rounded(half) == sign + even);
      CHECK(rounded(std::nextafter(half, 0.0F)) == sign + bits);
      CHECK(rounded(std::nextafter(half, 1e9F)) == sign + bits + 1);
    }
  }
}

}  // namespace

TEST_CASE("every code of both FP8 formats is the number that it stands for, and comes back") {
  check_all_codes<f8e4m3>();
  check_all_codes<f8e5m2>();
}

TEST_CASE("FP8 rounds to nearest, ties to even") {
  check_all_halves<f8e4m3>();
  check_all_halves<f8e5m2>();
  CHECK(to_float(to_fp8<f8e4m3>(1.0625F)) == 1.0F);       // tie, even below
  CHECK(to_float(to_fp8<f8e4m3>(1.1875F)) == 1.25F);      // tie, even above
  CHECK(to_float(to_fp8<f8e5m2>(1.125F)) == 1.0F);        // tie, even below
  CHECK(to_float(to_fp8<f8e5m2>(1.375F)) == 1.5F);        // tie, even above
  CHECK(to_float(to_fp8<f8e4m3>(0x1p-10F)) == 0);         // tie of zero and the smallest subnormal
  CHECK(to_float(to_fp8<f8e4m3>(0x1.8p-9F)) == 0x1p-8F);  // tie of subnormals
}

TEST_CASE("FP8 stops at the largest number") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0F, 449.0F, 464.0F, 480.0F, 1e30F, infinity}) {
    CHECK(to_float(to_fp8<f8e4m3>(x)) == 448);
    CHECK(to_float(to_fp8<f8e4m3>(-x)) == -448);
  }
  for (const float x : {57344.0F, 61440.0F, 65536.0F, 1e30F, infinity}) {
    CHECK(to_float(to_fp8<f8e5m2>(x)) == 57344);
    CHECK(to_float(to_fp8<f8e5m2>(-x)) == -57344);
  }
}

TEST_CASE("the scale is the greatest power of two that takes the largest element no further than the format goes") {
  for (const float largest : {1.0F, 1.75F, 1.7578125F, 448.0F, 450.0F, 0.02F, 3e-20F, 2.5e30F}) {
    INFO(largest);
    int exponent = 0;
    CHECK(std::frexp(fp8_scale<f8e4m3>(largest), &exponent) == 0.5F);
    CHECK(std::frexp(fp8_scale<f8e5m2>(largest), &exponent) == 0.5F);
    CHECK(largest * fp8_scale<f8e4m3>(largest) <= 448);
    CHECK(largest * fp8_scale<f8e4m3>(largest) > 224);
    CHECK(largest * fp8_scale<f8e5m2>(largest) <= 57344);
    CHECK(largest * fp8_scale<f8e5m2>(largest) > 28672);
  }
  CHECK(fp8_scale<f8e4m3>(0) == 1);
  CHECK(fp8_scale<f8e4m3>(0x1p-133F) == 0x1p126F);  // its inverse is not subnormal
  CHECK(std::isnan(fp8_scale<f8e4m3>(std::numeric_limits<float>::infinity())));
  CHECK(std::isnan(fp8_scale<f8e5m2>(std::nanf(""))));
}
