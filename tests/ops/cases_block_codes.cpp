// 8-bit codes with a scale for each block of a row (ops/block_codes.h).
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <vector>

#include "harness.h"
#include "ops/block_codes.h"
#include "reference.h"

namespace gptrain::ops_test::cases_block_codes {
namespace {

constexpr int64_t block = 128;

// Returns a code as a signed number.
double number(double code) { return code < 128 ? code : code - 256; }

// Returns numbers whose magnitudes differ between blocks by many orders.
std::vector<double> uneven(Trial& trial, int64_t rows, int64_t cols) {
  std::vector<double> values;
  for (int64_t row = 0; row < rows; ++row) {
    double scale = 1;
    for (int64_t col = 0; col < cols; ++col) {
      if (col % block == 0) scale = std::exp2(static_cast<double>(trial.random.below(20)) - 12);
      values.push_back(trial.random.normal() * scale);
    }
  }
  return values;
}

// Returns the largest magnitude in the block of an element.
double largest(const Operand& x, int64_t row, int64_t col, int64_t cols) {
  double found = 0;
  for (int64_t i = col / block * block; i < std::min(cols, (col / block + 1) * block); ++i)
    found = std::max(found, std::abs(x.at(row, i)));
  return found;
}

void check_encode(Trial& trial, int64_t rows, int64_t cols, DType dtype) {
  const Operand& x = trial.input(dtype, rows, cols, uneven(trial, rows, cols), 3);
  Operand& codes = trial.output(DType::u8, rows, cols, 1);
  Operand& scales = trial.output(DType::f32, rows, code_blocks(cols), 2);
  trial.run(EncodeBlocks{x.matrix(), codes.matrix(), scales.matrix()});
  int64_t wrong_scales = 0, wrong_codes = 0, blocks_without_largest = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < cols; first += block) {
      const double m = largest(x, row, first, cols), scale = scales.at(row, first / block);
      wrong_scales += std::abs(scale - m / 127) > m / 127 * 0x1p-23;
      double largest_code = 0;
      for (int64_t col = first; col < std::min(cols, first + block); ++col) {
        const double code = number(codes.at(row, col));
        largest_code = std::max(largest_code, std::abs(code));
        wrong_codes += !(std::abs(x.at(row, col) * 127 / m - code) <= 0.5001);
      }
      blocks_without_largest += largest_code != 127;
    }
  }
  trial.expect_true(wrong_scales == 0, fmt::format("{} scales are not those of their blocks", wrong_scales));
  trial.expect_true(wrong_codes == 0, fmt::format("{} codes are not the nearest", wrong_codes));
  trial.expect_true(blocks_without_largest == 0, fmt::format("{} blocks have no code 127", blocks_without_largest));
}

// Decodes random bytes: all are valid codes.
void check_decode(Trial& trial, int64_t rows, int64_t cols, DType dtype) {
  std::vector<double> bytes(static_cast<size_t>(rows * cols));
  for (double& byte : bytes) byte = static_cast<double>(trial.random.below(256));
  const Operand& codes = trial.input(DType::u8, rows, cols, bytes, 1);
  const Operand& scales = trial.input(DType::f32, rows, code_blocks(cols), 0.01, 2);
  Operand& x = trial.output(dtype, rows, cols, 3);
  trial.run(DecodeBlocks{codes.matrix(), scales.matrix(), x.matrix()});
  std::vector<double> expected;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      expected.push_back(number(codes.at(row, col)) * scales.at(row, col / block));
  trial.expect_near("x", x, expected, 0);
}

// Encodes and decodes. No element may be off by more than half a step of its block, m / 254, and one rounding. There is
// no bias: the sum of the errors is within that of independent roundings, except with a probability of 10^-9.
void check_both_ways(Trial& trial, int64_t rows, int64_t cols, DType dtype) {
  const Operand& x = trial.input(dtype, rows, cols, uneven(trial, rows, cols));
  Operand& codes = trial.in_out(DType::u8, rows, cols);
  Operand& scales = trial.in_out(DType::f32, rows, code_blocks(cols));
  Operand& back = trial.output(dtype, rows, cols);
  trial.run(EncodeBlocks{x.matrix(), codes.matrix(), scales.matrix()});
  trial.run(DecodeBlocks{codes.matrix(), scales.matrix(), back.matrix()});
  const double rounding = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
  double furthest = 0, sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      const double m = largest(x, row, col, cols), error = back.at(row, col) - x.at(row, col);
      furthest = std::max(furthest, std::abs(error) / (m / 254 * 1.0001 + m * rounding));
      sum += error / (m / 127);
    }
  }
  trial.expect_true(furthest <= 1, fmt::format("{} times the bound off", furthest));
  const double deviation =
      std::sqrt(static_cast<double>(rows * cols) / 12 * (1 + 12 * 127 * 127 * rounding * rounding));
  trial.expect_true(std::abs(sum) < 6.1 * deviation, fmt::format("errors add up to {} steps", sum));
}

// Checks blocks that are zero, tiny, huge or not finite; the blocks beside them are unaffected.
void check_extremes(Trial& trial) {
  constexpr int64_t rows = 6, cols = 3 * block;
  std::vector<double> values(static_cast<size_t>(rows * cols));
  for (double& value : values) value = trial.random.normal();
  const double middle[rows] = {0,
                               1e-38,
                               3.3e38,
                               std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < block; ++i) {
      double& value = values[static_cast<size_t>(row * cols + block + i)];
      value = row < 3 ? value * middle[row] / 5 : i == 77 ? middle[row] : value;
    }
  }
  const Operand& x = trial.input(DType::f32, rows, cols, values);
  Operand& codes = trial.in_out(DType::u8, rows, cols);
  Operand& scales = trial.in_out(DType::f32, rows, code_blocks(cols));
  Operand& back = trial.output(DType::f32, rows, cols);
  trial.run(EncodeBlocks{x.matrix(), codes.matrix(), scales.matrix()});
  trial.run(DecodeBlocks{codes.matrix(), scales.matrix(), back.matrix()});
  int64_t wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      const double value = back.at(row, col), distance = std::abs(value - x.at(row, col));
      const bool in_middle = col / block == 1;
      if (in_middle && row >= 3) {
        wrong += !std::isnan(value);
      } else if (in_middle && row < 2) {
        wrong += value != 0;
      } else {
        wrong += !(distance <= largest(x, row, col, cols) / 254 * 1.0001);
      }
    }
  }
  trial.expect_true(wrong == 0, fmt::format("{} elements are wrong", wrong));
}

// Encodes and decodes with codes of few bits. With 4 bits no element is off by more than m / 14. With 1 bit each
// element becomes the root of the mean square of its block, or minus that.
void check_few_bits(Trial& trial, int64_t rows, int64_t cols, int bits) {
  const Operand& x = trial.input(DType::f32, rows, cols, uneven(trial, rows, cols), 3);
  Operand& codes = trial.in_out(DType::u8, rows, code_bytes_of(cols, bits), 1);
  Operand& scales = trial.in_out(DType::f32, rows, code_blocks(cols), 2);
  Operand& back = trial.output(DType::f32, rows, cols, 1);
  trial.run(EncodeBlocks{.x = x.matrix(), .codes = codes.matrix(), .scales = scales.matrix(), .bits = bits});
  trial.run(DecodeBlocks{.codes = codes.matrix(), .scales = scales.matrix(), .x = back.matrix(), .bits = bits});
  int64_t wrong = 0, wrong_scales = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < cols; first += block) {
      const int64_t end = std::min(cols, first + block);
      double squares = 0;
      for (int64_t col = first; col < end; ++col) squares += x.at(row, col) * x.at(row, col);
      const double m = largest(x, row, first, cols);
      const double scale = bits == 1 ? std::sqrt(squares / static_cast<double>(end - first)) : m / 7;
      wrong_scales += !(std::abs(scales.at(row, first / block) - scale) <= 1e-6 * scale);
      for (int64_t col = first; col < end; ++col) {
        const double value = x.at(row, col), decoded = back.at(row, col);
        wrong += bits == 1 ? decoded != (value >= 0 ? 1 : -1) * scales.at(row, first / block)
                           : !(std::abs(decoded - value) <= m / 14 * 1.0001);
      }
    }
  }
  trial.expect_true(wrong_scales == 0, fmt::format("{} scales are not those of their blocks", wrong_scales));
  trial.expect_true(wrong == 0, fmt::format("{} elements are too far off", wrong));
}

void check_few_bits_rejections(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 2, 130);
  Operand& codes = trial.output(DType::u8, 2, 130);
  Operand& scales = trial.output(DType::f32, 2, 2);
  Operand& narrow = trial.output(DType::bf16, 2, 130);
  Operand& packed = trial.output(DType::u8, 2, 65);
  trial.expect_rejected(EncodeBlocks{.x = x.matrix(), .codes = codes.matrix(), .scales = scales.matrix(), .bits = 4},
                        "codes that are not packed");
  trial.expect_rejected(EncodeBlocks{.x = x.matrix(), .codes = packed.matrix(), .scales = scales.matrix(), .bits = 2},
                        "2 bits");
  trial.expect_rejected(
      DecodeBlocks{.codes = packed.matrix(), .scales = scales.matrix(), .x = narrow.matrix(), .bits = 4},
      "4 bits in bf16");
}

void check_rejections(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 2, 130);
  Operand& codes = trial.output(DType::u8, 2, 130);
  Operand& narrow = trial.output(DType::u8, 2, 129);
  Operand& scales = trial.output(DType::f32, 2, 2);
  Operand& one_scale = trial.output(DType::f32, 2, 1);
  trial.expect_rejected(EncodeBlocks{x.matrix(), narrow.matrix(), scales.matrix()}, "codes of fewer columns");
  trial.expect_rejected(EncodeBlocks{x.matrix(), codes.matrix(), one_scale.matrix()}, "too few scales");
  trial.expect_rejected(EncodeBlocks{codes.matrix(), codes.matrix(), scales.matrix()}, "codes of codes");
  trial.expect_rejected(DecodeBlocks{narrow.matrix(), scales.matrix(), x.matrix()}, "codes of fewer columns");
  trial.expect_rejected(DecodeBlocks{codes.matrix(), one_scale.matrix(), x.matrix()}, "too few scales");
}

void add_benches(Suite& suite, DType dtype) {
  constexpr int64_t cols = 3072;
  const int64_t rows = suite.bench_rows(dtype, 8192, 40960);
  const std::string name = fmt::format("N={} cols={} {}", rows, cols, dtype_name(dtype));
  suite.add_bench<EncodeBlocks>(name, [=](Trial& t) {
    t.time(EncodeBlocks{t.input(dtype, rows, cols).matrix(), t.output(DType::u8, rows, cols).matrix(),
                        t.output(DType::f32, rows, code_blocks(cols)).matrix()});
  });
  suite.add_bench<DecodeBlocks>(name, [=](Trial& t) {
    t.time(DecodeBlocks{t.in_out(DType::u8, rows, cols).matrix(),
                        t.in_out(DType::f32, rows, code_blocks(cols)).matrix(), t.output(dtype, rows, cols).matrix()});
  });
}

void add_cases(Suite& suite) {
  for (const DType dtype : compute_dtypes) {
    int64_t index = 0;
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 127}, {5, 128}, {4, 131}, {2, 264}, {7, 520}}) {
      if (is_left_out(dtype, index++)) continue;
      const auto n = rows, c = cols;
      const std::string name = fmt::format("N={} cols={} {}", n, c, dtype_name(dtype));
      suite.add<EncodeBlocks>(name, [=](Trial& t) { check_encode(t, n, c, dtype); });
      suite.add<DecodeBlocks>(name, [=](Trial& t) { check_decode(t, n, c, dtype); });
    }
    suite.add<DecodeBlocks>(fmt::format("both ways {}", dtype_name(dtype)),
                            [=](Trial& t) { check_both_ways(t, 16, 1000, dtype); });
    add_benches(suite, dtype);
  }
  suite.add<EncodeBlocks>("extremes", check_extremes);
  suite.add<EncodeBlocks>("rejections", check_rejections);
  for (const int bits : {1, 4}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 127}, {4, 131}, {2, 264}, {7, 520}}) {
      const auto n = rows, c = cols;
      suite.add<EncodeBlocks>(fmt::format("N={} cols={} {} bits", n, c, bits),
                              [=](Trial& t) { check_few_bits(t, n, c, bits); });
    }
  }
  suite.add<EncodeBlocks>("few bits, rejections", check_few_bits_rejections);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_block_codes
