// Normal random numbers (ops/normal_values.h), and their bits, which every backend shares.
#include <cmath>
#include <fmt/format.h>

#include "base/crc32c.h"
#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_normal {
namespace {

constexpr PhiloxKey key{0x12345678U, 0x9abcdef0U};
constexpr double deviation = 0.25;

// Returns normal number `index` of a key.
double normal_number(int64_t index) {
  const auto counter = static_cast<uint64_t>(index / 4);
  const auto words =
      reference_philox({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}, {key.k0, key.k1});
  const auto pair = static_cast<size_t>(index % 4 / 2 * 2);
  const double radius = std::sqrt(-2 * std::log((static_cast<double>(words[pair] >> 8) + 1) / 0x1p24));
  const double angle = 2 * M_PI * static_cast<double>(words[pair + 1] >> 8) / 0x1p24;
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

struct Offset {
  int64_t first, row_step;
};

NormalValues op_of(const Offset& offset, const Operand& to) {
  return {.key = key,
          .deviation = static_cast<float>(deviation),
          .first = offset.first,
          .row_step = offset.row_step,
          .to = to.matrix()};
}

void check_values(Trial& trial, const Offset& offset, int64_t rows, int64_t cols, DType dtype) {
  Operand& to = trial.output(dtype, rows, cols, 3);
  trial.run(op_of(offset, to));
  std::vector<double> expected;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col)
      expected.push_back(deviation * normal_number(offset.first + row * offset.row_step + col));
  }
  trial.expect_near("to", to, expected, deviation * 0x1p-20);
}

void check_bits(Trial& trial) {
  constexpr int64_t count = 100'000;
  Operand& to = trial.output(DType::f32, 1, count);
  trial.run(op_of({.first = 3, .row_step = 0}, to));
  const std::vector<float> values = Trial::array_of<float>(to, count);
  const uint32_t crc = crc32c(values.data(), values.size() * sizeof(float));
  trial.expect_true(crc == 0x816c2d15, fmt::format("the bits' checksum is {:#010x}", crc));
}

// Moments of a million numbers: each bound is five standard deviations of the moment's estimate.
void check_moments(Trial& trial) {
  constexpr int64_t count = 1'000'000;
  Operand& to = trial.output(DType::f32, 1, count);
  trial.run(op_of({.first = 0, .row_step = 0}, to));
  double sums[4] = {};
  for (const float value : Trial::array_of<float>(to, count)) {
    const double x = value / deviation;
    double power = 1;
    for (double& sum : sums) sum += power *= x;
  }
  constexpr double expected[] = {0, 1, 0, 3}, variances[] = {1, 2, 15, 96};
  for (size_t i = 0; i < 4; ++i) {
    const double error = std::abs(sums[i] / count - expected[i]);
    trial.expect_true(error < 5 * std::sqrt(variances[i] / count), fmt::format("moment {} is off by {}", i + 1, error));
  }
}

void add_cases(Suite& suite) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Offset offset : {Offset{0, 1500}, Offset{5, 1503}, Offset{(int64_t{4} << 32) - 700, 2}}) {
      for (const int64_t cols : {1, 6, 1400}) {
        suite.add<NormalValues>(
            fmt::format("first={} step={} rows=3 cols={} {}", offset.first, offset.row_step, cols, dtype_name(dtype)),
            [=](Trial& trial) { check_values(trial, offset, 3, cols, dtype); });
      }
    }
  }
  suite.add<NormalValues>("the bits of every backend", check_bits);
  suite.add<NormalValues>("moments", check_moments);
  suite.add<NormalValues>("f16 is refused", [](Trial& trial) {
    trial.expect_rejected(op_of({.first = 0, .row_step = 0}, trial.output(DType::f16, 1, 8)), "to is f16");
  });
  suite.add_bench<NormalValues>("38597376 f32", [](Trial& trial) {
    trial.time(op_of({.first = 0, .row_step = 0}, trial.output(DType::f32, 1, 38'597'376)));
  });
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_normal
