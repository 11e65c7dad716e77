#include <bit>
#include <cmath>
#ifdef __x86_64__
#include <immintrin.h>
#include <limits>
#endif

#include "base/dtype.h"
#include "base/loss_scale.h"
#include "base/philox.h"
#include "base/units.h"
#include "catch.h"
#include "model_fixture.h"
#include "ops/fused_attention_policy.h"
#include "optim/learning_rate.h"

using namespace gptrain;

TEST_CASE("Philox4x32-10 gives the published answers") {
  CHECK(philox({0, 0}, {0, 0, 0, 0}) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t ones = 0xffffffff;
  CHECK(philox({ones, ones}, {ones, ones, ones, ones}) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("stochastic rounding to bf16 takes either neighbour as often as its share, and keeps what bf16 holds") {
  // Over all 16 random bits, the number rounded away from zero equals the cut-off bits.
  const auto ups = [](float value) {
    int64_t count = 0;
    const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000U);
    const float above = std::bit_cast<float>((std::bit_cast<uint32_t>(value) & 0xffff0000U) + 0x10000U);
    for (uint32_t random = 0; random < 65536; ++random) {
      const float result = to_float(stochastic_bf16(value, random << 16 | 0x1234U));
      if (result != below && result != above) return int64_t{-1};
      count += result == above ? 1 : 0;
    }
    return count;
  };
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
#ifdef __x86_64__
  if (__builtin_cpu_supports("f16c") == 0) return;
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
    for (const uint32_t place : {0U, 0x1000U})
      for (const uint32_t next : {0U, 1U, 0xffffffffU}) check(std::bit_cast<uint32_t>(expected) + place + next);
  }
  for (uint32_t i = 0; i < 1 << 16; ++i)
    for (const uint32_t word : philox({5, 6}, {i, 0, 0, 0})) check(word);
  for (uint32_t bits = 0x33000000; bits < 0x38900000; bits += 977) check(bits);  // to subnormals
  CHECK(different == 0);
#endif
  constexpr f16 largest = to_f16(65519.0F), too_large = to_f16(65520.0F);
  CHECK(largest.bits == 0x7bff);
  CHECK(too_large.bits == 0x7c00);
}

TEST_CASE("the loss scale is halved by overflows and doubled by a window of good steps") {
  LossScale scale{4, 0};
  scale = next_loss_scale(scale, false, 2);
  CHECK((scale.value == 4 && scale.good_steps == 1));
  scale = next_loss_scale(scale, true, 2);
  CHECK((scale.value == 2 && scale.good_steps == 0));
  for (int i = 0; i < 2; ++i) scale = next_loss_scale(scale, false, 2);
  CHECK((scale.value == 4 && scale.good_steps == 0));
  for (int i = 0; i < 10; ++i) scale = next_loss_scale(scale, true, 2);
  CHECK(scale.value == least_loss_scale);
  for (int i = 0; i < 100; ++i) scale = next_loss_scale(scale, false, 1);
  CHECK(scale.value == most_loss_scale);
}

TEST_CASE("numbers for people") {
  CHECK(format_count(57123) == "57.1k");
  CHECK(format_count(999.7) == "1.00k");
  CHECK(format_count(12) == "12");
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1.9 * 1024 * 1024 * 1024) == "1.9 GiB");
  CHECK(format_duration(0.412) == "412 ms");
  CHECK(format_duration(59.96) == "1m");
  CHECK(format_duration(3600 * 5.2) == "5h 12m");
  CHECK(format_duration(86400 * 3 + 3600 * 4) == "3d 4h");
  CHECK(format_duration(86400 * 999'999.0) == "999999d 0h");
  CHECK(format_duration(1e18) == "1.16e+13 days");
  CHECK(format_duration(1e300) == "1.16e+295 days");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "inf days");
  CHECK(format_count(9e23) == "900Z");
  CHECK(format_count(1e30) == "1.00e+30");
  CHECK(format_grouped(124439808) == "124,439,808");
  CHECK(format_grouped(-1234) == "-1,234");
  CHECK(format_grouped(999) == "999");
  CHECK(format_counted(1, "rank") == "1 rank");
  CHECK(format_counted(1200, "call") == "1,200 calls");
  CHECK(format_counted(1, "micro-batch") == "1 micro-batch");
  CHECK(format_counted(2, "micro-batch") == "2 micro-batches");
}

TEST_CASE("learning rates at the corners of each curve") {
  RunConfig config;
  config.optimizer.lr = 1.0;
  config.run.steps = 110;
  config.lr_curve = {LrCurve::cosine, 10, 0, 0.1};
  CHECK(learning_rate(config, 0) == Approx(0.1));
  CHECK(learning_rate(config, 9) == Approx(1.0));
  CHECK(learning_rate(config, 10) == Approx(1.0));
  CHECK(learning_rate(config, 109) == Approx(0.1));
  CHECK(learning_rate(config, 59) + learning_rate(config, 60) == Approx(1.1));  // symmetric about its middle

  config.lr_curve.type = LrCurve::linear;
  CHECK(learning_rate(config, 10) == Approx(1.0));
  CHECK(learning_rate(config, 43) == Approx(0.7));
  CHECK(learning_rate(config, 109) == Approx(0.1));

  config.lr_curve = {LrCurve::wsd, 10, 20, 0.0};
  CHECK(learning_rate(config, 89) == Approx(1.0));
  CHECK(learning_rate(config, 90) == Approx(0.95));
  CHECK(learning_rate(config, 109) == Approx(0.0).margin(1e-12));

  config.lr_curve = {LrCurve::constant, 0, 0, 0};
  CHECK(learning_rate(config, 0) == 1.0);
  CHECK(learning_rate(config, 109) == 1.0);
}

TEST_CASE("a larger batch scales the course of the learning rate and stretches its warm-up") {
  RunConfig config;
  config.optimizer.lr = 0.1;
  config.optimizer.base_batch = 16;
  config.batch.global = 64;
  config.run.steps = 30;
  config.lr_curve = {LrCurve::linear, 4, 0, 0.01};
  CHECK(learning_rate(config, 3) == Approx(0.1));  // without scaling
  config.optimizer.lr_scaling = LrScaling::sqrt;
  CHECK(learning_rate(config, 3) == Approx(0.1));
  CHECK(learning_rate(config, 7) == Approx(0.2));
  CHECK(learning_rate(config, 29) == Approx(0.02));
  config.optimizer.lr_scaling = LrScaling::linear;
  CHECK(learning_rate(config, 15) == Approx(0.4));
  CHECK(learning_rate(config, 29) == Approx(0.04));
  config.batch.global = 8;  // also with a smaller batch
  CHECK(learning_rate(config, 1) == Approx(0.05));
}

TEST_CASE("learning rates have what the page of optimizers says of their first and last steps") {
  const auto rates = [](LrCurve type, int64_t steps, int64_t warmup, int64_t decay) {
    RunConfig config;
    config.optimizer.lr = 1;
    config.run.steps = steps;
    config.lr_curve = {type, warmup, decay, 0.1};
    std::vector<double> result;
    for (int64_t s = 0; s < steps; ++s) result.push_back(std::round(1e9 * learning_rate(config, s)) / 1e9);
    return result;
  };
  using Rates = std::vector<double>;
  CHECK(rates(LrCurve::linear, 10, 3, 0) == Rates{0.333333333, 0.666666667, 1, 1, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1});
  CHECK(rates(LrCurve::linear, 4, 0, 0) == Rates{1, 0.7, 0.4, 0.1});
  for (const LrCurve curve : {LrCurve::linear, LrCurve::cosine}) {
    CHECK(rates(curve, 3, 2, 0) == Rates{0.5, 1, 0.1});  // one step is left
    CHECK(rates(curve, 4, 2, 0) == Rates{0.5, 1, 1, 0.1});
  }
  CHECK(rates(LrCurve::cosine, 3, 0, 0) == Rates{1, 0.55, 0.1});
  CHECK(rates(LrCurve::wsd, 6, 2, 3) == Rates{0.5, 1, 1, 0.7, 0.4, 0.1});
  CHECK(rates(LrCurve::wsd, 5, 2, 3) == Rates{0.5, 1, 0.7, 0.4, 0.1});  // no step at the peak after the warm-up
  CHECK(rates(LrCurve::constant, 3, 1, 0) == Rates{1, 1, 1});
  for (const LrCurve curve : {LrCurve::constant, LrCurve::linear, LrCurve::cosine})
    CHECK(rates(curve, 4, 4, 0) == Rates{0.25, 0.5, 0.75, 1});  // warm-up only
}

TEST_CASE("attention's gradients without fixed bits take less memory of a GPU") {
  AttentionBackward op{};
  op.batch = 4;
  op.sequence_length = 2048;
  op.num_heads = op.num_kv_heads = 12;
  op.head_size = 64;
  op.q = Matrix(nullptr, DType::bf16, 4 * 2048, 12 * 64);
  const int64_t fixed = fused_attention_scratch_bytes(op);
  CHECK(fixed == fused_attention_overhead_bytes + 4 * 12 * (2048 * 2048 * 2 + 2048 * 4));
  op.fixed_bits = false;
  CHECK(fused_attention_scratch_bytes(op) == fused_attention_overhead_bytes + 4 * 12 * (2048 * 64 * 4 + 2048 * 4));
}
