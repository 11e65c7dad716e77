// Cases of the ops of FP8 linears.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "base/fp8.h"
#include "harness.h"
#include "tensor_core.h"

namespace gptrain::ops_test::cases_fp8 {
namespace {

// The formats by their definition (arXiv 2209.05433), independent of the code under test.
struct Format {
  DType dtype;
  int mantissa_bits, bias;
  int largest_code;
  double largest;

  // Returns the value of a code without its sign.
  double value(int code) const {
    const int exponent = code >> mantissa_bits;
    const double mantissa = code & ((1 << mantissa_bits) - 1);
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  }
  double signed_value(int code) const { return code < 128 ? value(code) : -value(code - 128); }
  // Returns the nearest code; a tie goes to the even one.
  int code(double x) const {
    int best = 0;
    for (int candidate = 1; candidate <= largest_code; ++candidate) {
      const double gain = std::abs(std::abs(x) - value(best)) - std::abs(std::abs(x) - value(candidate));
      if (gain > 0 || (gain == 0 && candidate % 2 == 0)) best = candidate;
    }
    return best + (std::signbit(x) ? 128 : 0);
  }
  // Returns the greatest power of two that keeps every element within the largest number.
  double scale(const std::vector<double>& values) const {
    double amax = 0;
    for (const double x : values) amax = std::max(amax, std::abs(x));
    return amax == 0 ? 1 : std::exp2(std::min(126.0, std::floor(std::log2(largest / amax))));
  }
};
const Format e4m3{.dtype = DType::f8e4m3, .mantissa_bits = 3, .bias = 7, .largest_code = 0x7e, .largest = 448};
const Format e5m2{.dtype = DType::f8e5m2, .mantissa_bits = 2, .bias = 15, .largest_code = 0x7b, .largest = 57344};

std::vector<double> transpose(const std::vector<double>& values, int64_t rows, int64_t cols) {
  std::vector<double> turned;
  for (int64_t col = 0; col < cols; ++col)
    for (int64_t row = 0; row < rows; ++row) turned.push_back(values[static_cast<size_t>(row * cols + col)]);
  return turned;
}

std::vector<double> codes_of(const Format& format, const std::vector<double>& values, double scale) {
  std::vector<double> codes;
  for (const double x : values) codes.push_back(format.code(x * scale));
  return codes;
}

// Returns an amax of `values`, in some of its parts.
const Operand& amax_of(Trial& trial, const std::vector<double>& values) {
  double amax = 0;
  for (const double x : values)
    amax = std::max(amax, std::isfinite(x) ? std::abs(x) : std::numeric_limits<double>::infinity());
  std::vector<double> parts(amax_parts);
  for (int i = 0; i < 5; ++i) parts[static_cast<size_t>(trial.random.below(amax_parts))] = amax / (5 - i);
  return trial.input(DType::f32, 1, amax_parts, parts);
}

struct QuantizeCase {
  int64_t rows, cols;
  bool with_rows, with_transposed, with_sums;
  int64_t gap;
};

void quantize_case(Trial& trial, const QuantizeCase& c, const Format& format) {
  // Reaches into the subnormals, and past them.
  std::vector<double> values;
  for (int64_t i = 0; i < c.rows * c.cols; ++i)
    values.push_back(trial.random.normal() * std::exp2(-static_cast<double>(trial.random.below(24))));
  const Operand& x = trial.input(DType::bf16, c.rows, c.cols, values, c.gap);
  Operand& rows = trial.output(format.dtype, c.rows, c.cols, c.gap);
  Operand& transposed = trial.output(format.dtype, c.cols, c.rows, c.gap);
  Operand& inverse_scale = trial.output(DType::f32, 1, 1);
  Operand& column_sums = trial.output(DType::f64, 1, c.cols);
  std::vector<double> sums(static_cast<size_t>(c.cols)), sizes(sums.size());
  values = x.values();
  trial.run(Quantize{.x = x.matrix(),
                     .to = {.amax = amax_of(trial, values).matrix(),
                            .rows = c.with_rows ? rows.matrix() : Matrix(),
                            .transposed = c.with_transposed ? transposed.matrix() : Matrix(),
                            .inverse_scale = inverse_scale.matrix(),
                            .column_sums = c.with_sums ? column_sums.matrix() : Matrix()}});
  const std::vector<double> codes = codes_of(format, values, format.scale(values));
  if (c.with_rows) trial.expect_equal("rows", rows, codes);
  if (c.with_transposed) trial.expect_equal("transposed", transposed, transpose(codes, c.rows, c.cols));
  trial.expect_equal("inverse_scale", inverse_scale, {1 / format.scale(values)});
  if (!c.with_sums) return;
  for (size_t i = 0; i < codes.size(); ++i) {
    sums[i % sums.size()] += values[i];
    sizes[i % sums.size()] += std::abs(values[i]);
  }
  trial.expect_near("column_sums", column_sums, sums, 0x1p-22 * *std::max_element(sizes.begin(), sizes.end()));
}

// A matrix of one number, with another one somewhere in it.
void special_case(Trial& trial, const Format& format, double common, double other) {
  constexpr int64_t rows = 32, cols = 144;
  std::vector<double> values(rows * cols, common);
  values[static_cast<size_t>(trial.random.below(rows * cols))] = other;
  const Operand& x = trial.input(DType::bf16, rows, cols, values);
  Operand& copy = trial.output(format.dtype, rows, cols);
  Operand& transposed = trial.output(format.dtype, cols, rows);
  Operand& inverse_scale = trial.output(DType::f32, 1, 1);
  trial.run(Quantize{.x = x.matrix(),
                     .to = {.amax = amax_of(trial, x.values()).matrix(),
                            .rows = copy.matrix(),
                            .transposed = transposed.matrix(),
                            .inverse_scale = inverse_scale.matrix()}});
  if (!std::isfinite(other)) {
    return trial.expect_true(std::isnan(inverse_scale.at(0, 0)), "what is not finite makes the scale NaN");
  }
  trial.expect_equal("inverse_scale", inverse_scale, {1 / format.scale(x.values())});
  trial.expect_equal("rows", copy, codes_of(format, x.values(), format.scale(x.values())));
}

// A part of a larger matrix, with the scale of the whole.
void part_case(Trial& trial, const Format& format) {
  const Operand& x = trial.input(DType::bf16, 32, 48);
  std::vector<double> all = x.values();
  all.push_back(1000);
  Operand& copy = trial.output(format.dtype, 32, 48);
  Operand& inverse_scale = trial.output(DType::f32, 1, 1);
  trial.run(Quantize{.x = x.matrix(),
                     .to = {.amax = amax_of(trial, all).matrix(),
                            .rows = copy.matrix(),
                            .transposed = {},
                            .inverse_scale = inverse_scale.matrix()}});
  trial.expect_equal("inverse_scale", inverse_scale, {1 / format.scale(all)});
  trial.expect_equal("rows", copy, codes_of(format, x.values(), format.scale(all)));
}

// Skips the case on a device without FP8 products.
void require_products(Trial& trial) {
  const Target& target = trial.backend().target();
  if (target.kind == Target::Kind::gpu && !target.fp8_products) throw NotOnThisBackend{"FP8 products"};
}

struct ProductCase {
  int64_t m, n, k;
  bool bias, accumulate;
  DType c;
  int64_t gap;
};

void product_case(Trial& trial, const ProductCase& p, const Format& of_a, const Format& of_b) {
  require_products(trial);
  const auto codes = [&](const Format& format, int64_t count) {
    std::vector<double> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(format.code(16 * trial.random.normal()));
    return result;
  };
  const Operand& a = trial.input(of_a.dtype, p.m, p.k, codes(of_a, p.m * p.k), p.gap);
  const Operand& b = trial.input(of_b.dtype, p.n, p.k, codes(of_b, p.n * p.k), p.gap);
  const Operand& a_scale = trial.input(DType::f32, 1, 1, std::vector<double>{0x1p-5});
  const Operand& b_scale = trial.input(DType::f32, 1, 1, std::vector<double>{0x1p-7});
  const Operand& bias = trial.input(DType::bf16, 1, p.n);
  Operand& c = p.accumulate ? trial.in_out(p.c, p.m, p.n, 1, p.gap) : trial.output(p.c, p.m, p.n, p.gap);
  std::vector<double> expected = p.accumulate ? c.values() : std::vector<double>(static_cast<size_t>(p.m * p.n));
  trial.run(ScaledProduct{.a = a.matrix(),
                          .b = b.matrix(),
                          .a_scale = a_scale.matrix(),
                          .b_scale = b_scale.matrix(),
                          .bias = p.bias ? bias.matrix() : Matrix(),
                          .c = c.matrix(),
                          .accumulate = p.accumulate});
  double most = 0, most_cut_off = 0;
  for (int64_t row = 0; row < p.m; ++row) {
    for (int64_t col = 0; col < p.n; ++col) {
      const auto of_row = [&](int64_t k) { return of_a.signed_value(static_cast<int>(a.at(row, k))); };
      const auto of_col = [&](int64_t k) { return of_b.signed_value(static_cast<int>(b.at(col, k))) * 0x1p-12; };
      double sum = 0, size = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        sum += of_row(k) * of_col(k);
        size += std::abs(of_row(k) * of_col(k));
      }
      const float on_tensor_cores = testing::tensor_core_sum(testing::tensor_core_fp8, p.k, of_row, of_col);
      most_cut_off = std::max(most_cut_off, std::abs(static_cast<double>(on_tensor_cores) - sum));
      expected[static_cast<size_t>(row * p.n + col)] += sum + (p.bias ? bias.at(0, col) : 0);
      most = std::max(most, size);
    }
  }
  // Tensor cores keep 13 bits below the first bit of the largest addend, and truncate the rest of each product and sum.
  const double bound = 0x1p-11 * most;
  trial.expect_near("c", c, expected, bound);
  trial.expect_true(most_cut_off <= bound, "what tensor cores cut off is within the bound");
}

double relative_distance(const Operand& actual, const std::vector<double>& reference) {
  double difference = 0, size = 0;
  const std::vector<double> values = actual.values();
  for (size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - reference[i]) * (values[i] - reference[i]);
    size += reference[i] * reference[i];
  }
  return std::sqrt(difference / size);
}

// Returns c [m, n] for a [m, k] and b [n, k].
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t m, int64_t n) {
  const size_t depth = a.size() / static_cast<size_t>(m);
  std::vector<double> c;
  for (size_t row = 0; row < static_cast<size_t>(m); ++row) {
    for (size_t col = 0; col < static_cast<size_t>(n); ++col) {
      double sum = 0;
      for (size_t k = 0; k < depth; ++k) sum += a[row * depth + k] * b[col * depth + k];
      c.push_back(sum);
    }
  }
  return c;
}

// A tensor with its FP8 codes.
struct Quantized {
  const Operand& x;
  Operand &amax, &rows, &transposed, &inverse_scale;

  Quantized(Trial& trial, DType dtype, int64_t num_rows, int64_t cols, double scale)
      : x(trial.input(DType::bf16, num_rows, cols, scale)),
        amax(trial.in_out(DType::f32, 1, amax_parts)),
        rows(trial.output(dtype, num_rows, cols)),
        transposed(trial.output(dtype, cols, num_rows)),
        inverse_scale(trial.output(DType::f32, 1, 1)) {}
  void run(Trial& trial) const {
    trial.run(Amax{x.matrix(), amax.matrix()});
    trial.run(Quantize{.x = x.matrix(),
                       .to = {.amax = amax.matrix(),
                              .rows = rows.matrix(),
                              .transposed = transposed.matrix(),
                              .inverse_scale = inverse_scale.matrix()}});
  }
};

// Checks that the three products of an FP8 linear are as far from those of its bf16 operands as the formats' rounding
// explains: spread evenly over the spacing 2^-3 (2^-2) of numbers in [1, 2), it makes 2.6% (5.2%) root mean square.
void linear_case(Trial& trial) {
  require_products(trial);
  constexpr int64_t rows = 128, in = 96, out = 80;
  const Quantized x(trial, DType::f8e4m3, rows, in, 3), w(trial, DType::f8e4m3, out, in, 0.02),
      dy(trial, DType::f8e5m2, rows, out, 1e-6);
  Operand& y = trial.output(DType::bf16, rows, out);
  Operand& dx = trial.output(DType::bf16, rows, in);
  Operand& dw = trial.output(DType::f32, out, in);
  for (const Quantized* tensor : {&x, &w, &dy}) tensor->run(trial);
  const auto run = [&](const Operand& a, const Quantized& of_a, const Operand& b, const Quantized& of_b, Operand& c) {
    trial.run(ScaledProduct{.a = a.matrix(),
                            .b = b.matrix(),
                            .a_scale = of_a.inverse_scale.matrix(),
                            .b_scale = of_b.inverse_scale.matrix(),
                            .bias = {},
                            .c = c.matrix(),
                            .accumulate = false});
  };
  run(x.rows, x, w.rows, w, y);
  run(dy.rows, dy, w.transposed, w, dx);
  run(dy.transposed, dy, x.transposed, x, dw);
  const std::vector<double> xs = x.x.values(), ws = w.x.values(), dys = dy.x.values();
  const auto expect = [&](const char* what, const Operand& actual, const std::vector<double>& reference,
                          double formats) {
    const double distance = relative_distance(actual, reference);
    if (distance < 0.8 * formats || distance > 1.1 * formats)
      trial.fail(fmt::format("{} is {:.4f} from the product in double, the formats' rounding {:.4f}", what, distance,
                             formats));
  };
  const double forward = 0.0263 * std::sqrt(2), gradient = std::hypot(0.0263, 0.0526);
  expect("y", y, product(xs, ws, rows, out), forward);
  expect("dx", dx, product(dys, transpose(ws, out, in), rows, in), gradient);
  expect("dw", dw, product(transpose(dys, rows, out), transpose(xs, rows, in), out, in), gradient);
}

void rejected_case(Trial& trial) {
  const Operand& x = trial.input(DType::bf16, 32, 24);
  Operand& copy = trial.output(DType::f8e4m3, 32, 24);
  Operand& scale = trial.output(DType::f32, 1, 1);
  const Matrix amax = amax_of(trial, {1}).matrix();
  trial.expect_rejected(
      Quantize{.x = x.matrix(),
               .to = {.amax = amax, .rows = copy.matrix(), .transposed = {}, .inverse_scale = scale.matrix()}},
      "24 columns");
  const Matrix narrow = x.matrix().column_range(0, 16);
  trial.expect_rejected(
      Quantize{.x = narrow, .to = {.amax = amax, .rows = {}, .transposed = {}, .inverse_scale = scale.matrix()}},
      "no copy");
  trial.expect_rejected(Quantize{.x = narrow,
                                 .to = {.amax = {},
                                        .rows = copy.matrix().column_range(0, 16),
                                        .transposed = {},
                                        .inverse_scale = scale.matrix()}},
                        "no amax");
  const Operand& a = trial.input(DType::f8e5m2, 16, 16, std::vector<double>(256));
  Operand& c = trial.output(DType::bf16, 16, 16);
  trial.expect_rejected(ScaledProduct{.a = a.matrix(),
                                      .b = a.matrix(),
                                      .a_scale = scale.matrix(),
                                      .b_scale = scale.matrix(),
                                      .bias = {},
                                      .c = c.matrix(),
                                      .accumulate = false},
                        "both f8e5m2");
}

void add_cases(Suite& suite) {
  for (const Format* format : {&e4m3, &e5m2}) {
    const auto name = dtype_name(format->dtype);
    for (const QuantizeCase& c :
         {QuantizeCase{
              .rows = 16, .cols = 16, .with_rows = true, .with_transposed = true, .with_sums = false, .gap = 0},
          QuantizeCase{
              .rows = 128, .cols = 128, .with_rows = true, .with_transposed = true, .with_sums = true, .gap = 0},
          QuantizeCase{
              .rows = 48, .cols = 272, .with_rows = true, .with_transposed = false, .with_sums = true, .gap = 16},
          QuantizeCase{
              .rows = 272, .cols = 48, .with_rows = false, .with_transposed = true, .with_sums = false, .gap = 16},
          QuantizeCase{
              .rows = 272, .cols = 144, .with_rows = true, .with_transposed = true, .with_sums = true, .gap = 32}}) {
      suite.add<Quantize>(
          fmt::format("N={} cols={} to {}{}{}{}{}", c.rows, c.cols, name, c.with_rows ? " rows" : "",
                      c.with_transposed ? " transposed" : "", c.with_sums ? " sums" : "", c.gap > 0 ? " strided" : ""),
          [=](Trial& trial) { quantize_case(trial, c, *format); });
    }
    suite.add<Quantize>(fmt::format("a part of a larger matrix to {}", name),
                        [=](Trial& trial) { part_case(trial, *format); });
    constexpr double infinity = std::numeric_limits<double>::infinity();
    // Zeros, the scale's bound, mantissas at and past that of the largest number, and numbers that are not finite.
    for (const auto& [common, other] : {std::pair{0.0, 0.0},
                                        {0.0, 0x1p-130},
                                        {1e-30, 0x1.cp120},
                                        {1.0, 1.75},
                                        {1.0, 1.7578125},
                                        {-1.0, 3.3e38},
                                        {0x1p-20, -1.0},
                                        {1.0, infinity},
                                        {1.0, -infinity},
                                        {1.0, std::nan("")}}) {
      suite.add<Quantize>(fmt::format("{} and {} to {}", common, other, name),
                          [=](Trial& trial) { special_case(trial, *format, common, other); });
    }
  }
  for (const ProductCase& p :
       {ProductCase{.m = 16, .n = 16, .k = 16, .bias = false, .accumulate = false, .c = DType::bf16, .gap = 0},
        ProductCase{.m = 48, .n = 80, .k = 272, .bias = true, .accumulate = false, .c = DType::bf16, .gap = 0},
        ProductCase{.m = 144, .n = 32, .k = 96, .bias = false, .accumulate = false, .c = DType::f32, .gap = 16},
        ProductCase{.m = 64, .n = 112, .k = 208, .bias = false, .accumulate = true, .c = DType::f32, .gap = 16}}) {
    for (const auto& [a, b] : {std::pair{&e4m3, &e4m3}, {&e5m2, &e4m3}, {&e4m3, &e5m2}}) {
      suite.add<ScaledProduct>(fmt::format("m={} n={} k={} {} x {} to {}{}{}{}", p.m, p.n, p.k, dtype_name(a->dtype),
                                           dtype_name(b->dtype), dtype_name(p.c), p.bias ? " bias" : "",
                                           p.accumulate ? " accumulate" : "", p.gap > 0 ? " strided" : ""),
                               [=](Trial& trial) { product_case(trial, p, *a, *b); });
    }
  }
  suite.add<ScaledProduct>("the products of a linear", linear_case);
  suite.add<ScaledProduct>("sizes and types that are not had", rejected_case);
}

// A linear of GPT-2 1.5B, for a micro-batch on a GPU, for a part of it elsewhere.
void add_benches(Suite& suite) {
  constexpr int64_t in = 1600, out = 6400;
  const auto rows_of = [](Trial& trial) -> int64_t {
    return trial.backend().target().kind == Target::Kind::cpu ? 16 : 16384;
  };
  for (const Format* format : {&e4m3, &e5m2}) {
    const bool bias = format == &e5m2;
    suite.add_bench<Quantize>(fmt::format("cols={} bf16 to {}{}", in, dtype_name(format->dtype), bias ? " bias" : ""),
                              [=](Trial& trial) {
                                const int64_t rows = rows_of(trial);
                                const Operand& x = trial.input(DType::bf16, rows, in);
                                Operand& copy = trial.output(format->dtype, rows, in);
                                Operand& transposed = trial.output(format->dtype, in, rows);
                                Operand& inverse_scale = trial.output(DType::f32, 1, 1);
                                Operand& sums = trial.output(DType::f64, 1, in);
                                trial.time(Quantize{.x = x.matrix(),
                                                    .to = {.amax = amax_of(trial, {4}).matrix(),
                                                           .rows = copy.matrix(),
                                                           .transposed = transposed.matrix(),
                                                           .inverse_scale = inverse_scale.matrix(),
                                                           .column_sums = bias ? sums.matrix() : Matrix()}});
                              });
  }
  const auto add_product = [&suite](const char* what, const Format& of_a, DType dtype_c, const auto& sizes) {
    suite.add_bench<ScaledProduct>(what, [=, &of_a](Trial& trial) {
      const auto [m, n, k] = sizes(trial);
      const auto codes = [&](int64_t count) {
        std::vector<double> result;
        for (int64_t i = 0; i < count; ++i) result.push_back(static_cast<double>(trial.random.below(0x60)));
        return result;
      };
      const Operand& a = trial.input(of_a.dtype, m, k, codes(m * k));
      const Operand& b = trial.input(DType::f8e4m3, n, k, codes(n * k));
      const Operand& scale = trial.input(DType::f32, 1, 1, std::vector<double>{0x1p-5});
      Operand& c = trial.output(dtype_c, m, n);
      trial.time(ScaledProduct{.a = a.matrix(),
                               .b = b.matrix(),
                               .a_scale = scale.matrix(),
                               .b_scale = scale.matrix(),
                               .bias = {},
                               .c = c.matrix(),
                               .accumulate = false});
    });
  };
  using Sizes = std::array<int64_t, 3>;
  add_product("y, in=1600 out=6400", e4m3, DType::bf16, [=](Trial& trial) { return Sizes{rows_of(trial), out, in}; });
  add_product("dx, in=1600 out=6400", e5m2, DType::bf16, [=](Trial& trial) { return Sizes{rows_of(trial), in, out}; });
  add_product("dw, in=1600 out=6400", e5m2, DType::f32, [=](Trial& trial) { return Sizes{out, in, rows_of(trial)}; });
}

const Registration cases(add_cases);
const Registration benches(add_benches);

}  // namespace
}  // namespace gptrain::ops_test::cases_fp8
