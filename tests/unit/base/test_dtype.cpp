// Conversions to bf16 and f16.
#include <bit>
#include <cmath>
#include <cstdint>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "base/dtype.h"
#include "base/philox.h"
#include "catch.h"
#include "skip.h"

using namespace gptrain;

namespace {

// Counts the values of the 16 random bits with which a float is rounded away from zero; -1 if one gives no neighbour. A
// function, as a compiler tries to run a lambda while it compiles, which takes it ten seconds.
int64_t ups(float value) {
  int64_t count = 0;
  const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000U);
  const float above = std::bit_cast<float>((std::bit_cast<uint32_t>(value) & 0xffff0000U) + 0x10000U);
  for (uint32_t random = 0; random < 65536; ++random) {
    const float result = to_float(stochastic_bf16(value, random << 16 | 0x1234U));
    if (result != below && result != above) return -1;
    count += result == above ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("stochastic rounding to bf16 takes either neighbour as often as its share, and keeps what bf16 holds") {
  CHECK(ups(1.0F) == 0);
  CHECK(ups(-0x1p-130F) == 0);
  CHECK(ups(1.0F + 0x1p-9F) == 16384);
  CHECK(ups(-(1.0F + 0x1p-9F)) == 16384);
  CHECK(ups(1.0F + 0x1p-23F) == 1);
  CHECK(ups(2.0F - 0x1p-23F) == 65535);  // to the next power of two
  for (const uint32_t random : {0U, 0xffffffffU}) {
    CHECK(to_float(stochastic_bf16(-INFINITY, random)) == -INFINITY);
    for (const uint32_t nan : {0x7f800001U, 0xffffffffU, 0x7fffffffU})
      CHECK(std::isnan(to_float(stochastic_bf16(std::bit_cast<float>(nan), random))));
  }
}

TEST_CASE("bf16 rounds to nearest, ties to even, and keeps what is not finite") {
  CHECK(to_float(to_bf16(1.0F)) == 1.0F);
  CHECK(to_float(to_bf16(1.0F + 0x1p-8F)) == 1.0F);                // tie, even below
  CHECK(to_float(to_bf16(1.0F + 3 * 0x1p-8F)) == 1.0F + 0x1p-6F);  // tie, even above
  CHECK(to_float(to_bf16(1.0F + 0x1p-8F + 0x1p-20F)) == 1.0F + 0x1p-7F);
  CHECK(std::isinf(to_float(to_bf16(3.4e38F))));
  CHECK(std::isnan(to_float(to_bf16(std::nanf("")))));
}

namespace {

#ifdef __x86_64__
__attribute__((target("f16c"))) uint16_t hardware_f16(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
__attribute__((target("f16c"))) float hardware_float(uint16_t bits) { return _cvtsh_ss(bits); }
#endif

}  // namespace

TEST_CASE("f16 rounds as the processor does, and widens exactly") {
  constexpr f16 largest = to_f16(65519.0F), too_large = to_f16(65520.0F);
  CHECK(largest.bits == 0x7bff);
  CHECK(too_large.bits == 0x7c00);
#ifdef __x86_64__
  if (__builtin_cpu_supports("f16c") == 0) return testing::skip_case("the CPU has no F16C");
  int64_t different = 0;
  const auto check = [&](uint32_t bits) {
    const auto value = std::bit_cast<float>(bits);
    different += to_f16(value).bits != hardware_f16(value) && !std::isnan(value) ? 1 : 0;
    different += std::isnan(to_float(to_f16(value))) != std::isnan(value) ? 1 : 0;
  };
  // Checks every number, the midpoint to the next, and the floats beside both.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float wide = to_float(f16{narrow});
    const float expected = hardware_float(narrow);
    different += std::isnan(wide) != std::isnan(expected) || (!std::isnan(wide) && wide != expected) ||
                         std::signbit(wide) != std::signbit(expected)
                     ? 1
                     : 0;
    for (const uint32_t index : {0U, 0x1000U})
      for (const uint32_t next : {0U, 1U, 0xffffffffU}) check(std::bit_cast<uint32_t>(expected) + index + next);
  }
  for (uint32_t i = 0; i < 1 << 16; ++i)
    for (const uint32_t word : philox({5, 6}, {i, 0, 0, 0})) check(word);
  for (uint32_t bits = 0x33000000; bits < 0x38900000; bits += 977) check(bits);  // to subnormals
  CHECK(different == 0);
#else
  testing::skip_case("the CPU has no F16C");
#endif
}
