#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "activation_reference.h"
#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_activation {
namespace {

using namespace activation_reference;

// Effect of rounding x + bias to f32: the sum is up to 8 * scale and slopes are below 1.13.
double noise_of(double scale) { return 0x1p-22 * scale; }

void check_forward(Trial& trial, const Kind& kind, int64_t rows, int64_t cols, DType dtype, bool with_bias,
                   double scale) {
  const int64_t wide = is_gated(kind.kind) ? 2 * cols : cols;
  const Operand& x = trial.input(dtype, rows, wide, scale, 3);
  const Operand& bias = trial.input(dtype, 1, wide);
  Operand& y = trial.output(dtype, rows, cols, 1);
  trial.run(ActivationForward{
      .kind = kind.kind, .x = x.matrix(), .bias = with_bias ? bias.matrix() : Matrix(), .y = y.matrix()});
  const auto expected = activate(kind.kind, biased<double>(x, bias, with_bias), cols);
  const auto plain = activate(kind.kind, biased<float>(x, bias, with_bias), cols);
  trial.expect_close("y", y, expected, rounded(to_double(plain), dtype), 3, noise_of(scale));
}

void check_backward(Trial& trial, const Kind& kind, int64_t rows, int64_t cols, DType dtype, bool with_bias,
                    double scale) {
  const int64_t wide = is_gated(kind.kind) ? 2 * cols : cols;
  const Operand& x = trial.input(dtype, rows, wide, scale, 3);
  const Operand& bias = trial.input(dtype, 1, wide);
  const Operand& dy = trial.input(dtype, rows, cols, 1, 2);
  Operand& dx = trial.output(dtype, rows, wide, 1);
  trial.run(ActivationBackward{.kind = kind.kind,
                               .x = x.matrix(),
                               .bias = with_bias ? bias.matrix() : Matrix(),
                               .dy = dy.matrix(),
                               .dx = dx.matrix()});
  const auto expected = gradient(kind.kind, biased<double>(x, bias, with_bias), dy.values(), cols);
  const auto plain = gradient(kind.kind, biased<float>(x, bias, with_bias), to_real<float>(dy.values()), cols);
  trial.expect_close("dx", dx, expected, rounded(to_double(plain), dtype), 3, noise_of(scale));
}

void check_reference_gradient(Trial& trial, const Kind& kind) {
  constexpr int64_t rows = 3, cols = 5;
  const int64_t wide = is_gated(kind.kind) ? 2 * cols : cols;
  const std::vector<double> x = trial.input(DType::f32, rows, wide, 2).values();
  const std::vector<double> dy = trial.input(DType::f32, rows, cols).values();
  const auto loss = [&](const std::vector<double>& moved) {
    const std::vector<double> y = activate(kind.kind, moved, cols);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  trial.expect_true(difference_from_numeric(loss, x, gradient(kind.kind, x, dy, cols)) < 1e-8, "dx is the derivative");
}

// Checks that far from 0 nothing overflows, NaN stays NaN, and small values of the lower tail keep their accuracy.
void check_extremes(Trial& trial, const Kind& kind) {
  if (is_gated(kind.kind)) return;
  const std::vector<double> values{0, -0.0, 1e-30, -1e-30, 100, -100, 1e4, -1e4, -3, -5, -5.5, 5.5};
  const auto count = static_cast<int64_t>(values.size());
  const Operand& x = trial.input(DType::f32, 1, count, values);
  Operand& y = trial.output(DType::f32, 1, count);
  Operand& slope = trial.output(DType::f32, 1, count);
  const Operand& ones = trial.input(DType::f32, 1, count, std::vector<double>(values.size(), 1));
  trial.run(ActivationForward{.kind = kind.kind, .x = x.matrix(), .bias = {}, .y = y.matrix()});
  const std::vector<double> results = y.values();
  trial.run(
      ActivationBackward{.kind = kind.kind, .x = x.matrix(), .bias = {}, .dy = ones.matrix(), .dx = slope.matrix()});
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = function(kind.kind, values[i]);
    // Near -1, tanh(u) in f64 leaves 1e-16 of noise in the reference.
    const double allowed = 4e-6 * std::abs(expected) + 1e-15 * std::abs(values[i]);
    trial.expect_true(std::abs(results[i] - expected) <= allowed,
                      fmt::format("value at {} is {}, reference {}", values[i], results[i], expected));
    trial.expect_true(std::isfinite(slope.at(0, static_cast<int64_t>(i))),
                      fmt::format("finite slope at {}", values[i]));
  }
  const Operand& nan = trial.input(DType::f32, 1, 1, std::vector<double>{std::numeric_limits<double>::quiet_NaN()});
  Operand& of_nan = trial.in_out(DType::f32, 1, 1);
  trial.run(ActivationForward{.kind = kind.kind, .x = nan.matrix(), .bias = {}, .y = of_nan.matrix()});
  trial.expect_true(std::isnan(of_nan.at(0, 0)), "NaN in, NaN out");
}

void add_cases(Suite& suite) {
  for (const Kind& kind : kinds) {
    for (const DType dtype : compute_dtypes) {
      for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 31}, {13, 64}, {2, 1027}}) {
        if (dtype == DType::f16 && rows != 5 && rows != 13) continue;
        const bool is_geglu = is_gated(kind.kind) && kind.kind != ActivationKind::swiglu;
        if (is_geglu && rows != 5 && rows != 13) continue;  // swiglu's loops with gelu's functions
        for (const bool with_bias : {false, true}) {
          const std::string name =
              fmt::format("{} N={} f={}{} C={}", kind.name, rows, cols, with_bias ? " bias" : "", dtype_name(dtype));
          const auto n = rows, f = cols;
          suite.add<ActivationForward>(name, [=](Trial& t) { check_forward(t, kind, n, f, dtype, with_bias, 2); });
          suite.add<ActivationBackward>(name, [=](Trial& t) { check_backward(t, kind, n, f, dtype, with_bias, 2); });
          suite.add<ActivationForward>(name + " wide range",
                                       [=](Trial& t) { check_forward(t, kind, n, f, dtype, with_bias, 20); });
          suite.add<ActivationBackward>(name + " wide range",
                                        [=](Trial& t) { check_backward(t, kind, n, f, dtype, with_bias, 20); });
        }
      }
      constexpr int64_t cols = 3072;
      const int64_t rows = suite.bench_rows(dtype, 8192, 40960);
      const int64_t wide = is_gated(kind.kind) ? 2 * cols : cols;
      const std::string name = fmt::format("{} N={} f=3072 bias C={}", kind.name, rows, dtype_name(dtype));
      suite.add_bench<ActivationForward>(name, [=](Trial& t) {
        t.time(ActivationForward{.kind = kind.kind,
                                 .x = t.input(dtype, rows, wide).matrix(),
                                 .bias = t.input(dtype, 1, wide).matrix(),
                                 .y = t.output(dtype, rows, cols).matrix()});
      });
      suite.add_bench<ActivationBackward>(name, [=](Trial& t) {
        t.time(ActivationBackward{.kind = kind.kind,
                                  .x = t.input(dtype, rows, wide).matrix(),
                                  .bias = t.input(dtype, 1, wide).matrix(),
                                  .dy = t.input(dtype, rows, cols).matrix(),
                                  .dx = t.output(dtype, rows, wide).matrix()});
      });
    }
    suite.add<ActivationBackward>(fmt::format("derivative of {}", kind.name),
                                  [=](Trial& t) { check_reference_gradient(t, kind); });
    suite.add<ActivationForward>(fmt::format("extremes of {}", kind.name), [=](Trial& t) { check_extremes(t, kind); });
  }
  suite.add<ActivationBackward>("rejections", [](Trial& t) {
    const Operand& x = t.input(DType::f32, 2, 6);
    Operand& dx = t.output(DType::f32, 2, 6);
    t.expect_rejected(
        ActivationBackward{
            .kind = ActivationKind::gelu, .x = x.matrix(), .bias = {}, .dy = x.matrix(), .dx = x.matrix()},
        "dx is x");
    t.expect_rejected(
        ActivationBackward{
            .kind = ActivationKind::swiglu, .x = x.matrix(), .bias = {}, .dy = x.matrix(), .dx = dx.matrix()},
        "swiglu of an x that is not twice as wide as dy");
  });
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_activation
