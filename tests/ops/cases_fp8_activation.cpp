// Cases of activations whose output is written as FP8 copies only.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "activation_reference.h"
#include "base/fp8.h"
#include "harness.h"

namespace gptrain::ops_test::cases_fp8_activation {
namespace {

using namespace activation_reference;

struct Case {
  int64_t rows, cols;  // size of the activation's narrow side
  bool bias, with_rows, with_transposed;
};

// FP8 copies of a matrix, with all that they may come with. `amax`: that of earlier steps.
struct Copies {
  const Operand& amax;
  Operand &rows, &transposed, &inverse_scale, &sums, &largest;

  Copies(Trial& trial, DType dtype, int64_t num_rows, int64_t cols, double forecast)
      : amax(trial.input(DType::f32, 1, 1, std::vector<double>{forecast})),
        rows(trial.output(dtype, num_rows, cols, 16)),
        transposed(trial.output(dtype, cols, num_rows, 16)),
        inverse_scale(trial.output(DType::f32, 1, 1)),
        sums(trial.output(DType::f64, 1, cols)),
        largest(trial.in_out(DType::f32, 1, 1)) {
    largest.set_values({-std::numeric_limits<double>::infinity()});
  }

  Fp8Copies matrices(const Case& c) const {
    return {.amax = amax.matrix(),
            .rows = c.with_rows ? rows.matrix() : Matrix(),
            .transposed = c.with_transposed ? transposed.matrix() : Matrix(),
            .inverse_scale = inverse_scale.matrix(),
            .column_sums = sums.matrix(),
            .largest = largest.matrix()};
  }
  void expect_same(Trial& trial, const Case& c, const Copies& other) const {
    if (c.with_rows) trial.expect_equal("rows", rows, other.rows.values());
    if (c.with_transposed) trial.expect_equal("transposed", transposed, other.transposed.values());
    trial.expect_equal("inverse_scale", inverse_scale, other.inverse_scale.values());
    trial.expect_equal("column_sums", sums, other.sums.values());
    trial.expect_equal("largest", largest, other.largest.values());
  }
};

double decoded(DType dtype, double code) {
  const auto bits = static_cast<uint8_t>(code);
  return static_cast<double>(dtype == DType::f8e4m3 ? to_float(f8e4m3{bits}) : to_float(f8e5m2{bits}));
}

// Checks codes against a matrix in double: half a step of the format, and the rounding to bf16 before it.
void expect_near_exact(Trial& trial, const Operand& rows, const std::vector<double>& exact, double scale) {
  const DType dtype = rows.matrix().dtype;
  const int bits = dtype == DType::f8e4m3 ? 3 : 2;
  const double most = dtype == DType::f8e4m3 ? 448 : 57344, least = dtype == DType::f8e4m3 ? 0x1p-9 : 0x1p-16;
  const std::vector<double> codes = rows.values();
  for (size_t i = 0; i < exact.size(); ++i) {
    const double expected = std::clamp(exact[i] * scale, -most, most);
    const double bound = std::abs(expected) * (std::ldexp(1, -bits - 1) + 0x1p-7) + least / 2 + 1e-6 * scale;
    if (std::abs(decoded(dtype, codes[i]) - expected) > bound)
      return trial.fail(fmt::format("element {} is {}, expected {}", i, decoded(dtype, codes[i]), expected));
  }
}

void check_forward(Trial& trial, const Kind& kind, const Case& c, DType dtype, double forecast) {
  const int64_t wide = is_gated(kind.kind) ? 2 * c.cols : c.cols;
  const Operand& x = trial.input(DType::bf16, c.rows, wide, 2, 16);
  const Operand& bias = trial.input(DType::bf16, 1, wide);
  Operand& y = trial.output(DType::bf16, c.rows, c.cols, 8);
  const Copies fused(trial, dtype, c.rows, c.cols, forecast), apart(trial, dtype, c.rows, c.cols, forecast);
  ActivationForward op{.kind = kind.kind, .x = x.matrix(), .bias = c.bias ? bias.matrix() : Matrix(), .y = y.matrix()};
  trial.run(op);
  trial.run(Quantize{y.matrix(), apart.matrices(c)});
  op.y = {};
  op.fp8 = fused.matrices(c);
  trial.run(op);
  fused.expect_same(trial, c, apart);
  if (!c.with_rows) return;
  const auto exact = activate(kind.kind, biased<double>(x, bias, c.bias), c.cols);
  expect_near_exact(trial, fused.rows, exact, 1 / fused.inverse_scale.at(0, 0));
}

void check_backward(Trial& trial, const Kind& kind, const Case& c, DType dtype, double forecast) {
  const int64_t wide = is_gated(kind.kind) ? 2 * c.cols : c.cols;
  const Operand& x = trial.input(DType::bf16, c.rows, wide, 2, 16);
  const Operand& bias = trial.input(DType::bf16, 1, wide);
  const Operand& dy = trial.input(DType::bf16, c.rows, c.cols, 1, 16);
  Operand& dx = trial.output(DType::bf16, c.rows, wide, 8);
  const Copies fused(trial, dtype, c.rows, wide, forecast), apart(trial, dtype, c.rows, wide, forecast);
  ActivationBackward op{.kind = kind.kind,
                        .x = x.matrix(),
                        .bias = c.bias ? bias.matrix() : Matrix(),
                        .dy = dy.matrix(),
                        .dx = dx.matrix()};
  trial.run(op);
  trial.run(Quantize{dx.matrix(), apart.matrices(c)});
  op.dx = {};
  op.fp8 = fused.matrices(c);
  trial.run(op);
  fused.expect_same(trial, c, apart);
  if (!c.with_rows) return;
  const auto exact = gradient(kind.kind, biased<double>(x, bias, c.bias), dy.values(), c.cols);
  expect_near_exact(trial, fused.rows, exact, 1 / fused.inverse_scale.at(0, 0));
}

// An element that is not finite is NaN in the copies, under whatever scale, and makes the largest element infinite.
void check_not_finite(Trial& trial, double value) {
  std::vector<double> values(32 * 48, 1.0);
  values[777] = value;
  const Operand& x = trial.input(DType::bf16, 32, 48, values);
  const Copies copies(trial, DType::f8e4m3, 32, 48, 2);
  const Case all{.rows = 32, .cols = 48, .bias = false, .with_rows = true, .with_transposed = true};
  trial.run(Quantize{x.matrix(), copies.matrices(all)});
  trial.expect_true(std::isnan(decoded(DType::f8e4m3, copies.rows.values()[777])), "what is not finite becomes NaN");
  trial.expect_true(copies.largest.at(0, 0) == std::numeric_limits<double>::infinity(), "the amax is infinite");
}

// Steps of a history of three: growing, not found, not finite, skipped, and then forgotten ones.
void check_history(Trial& trial) {
  constexpr int64_t count = 40, length = 3;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> history(length * count, 0), initial(count), forecast(count, 0);
  for (int64_t i = 0; i < count; ++i) initial[static_cast<size_t>(i)] = 1 + static_cast<double>(i);
  for (int64_t step = 1; step <= 6; ++step) {
    std::vector<double> amaxes;
    for (int64_t i = 0; i < count; ++i) {
      const double found[] = {trial.random.normal(), -infinity, infinity, 0x1p-20, 7};
      amaxes.push_back(i < 5 ? 0 : std::abs(found[trial.random.below(5)]) * (trial.random.below(2) == 0 ? 1 : -1));
    }
    StepState state;
    state.updates = step;
    state.skip = step == 4 ? 1 : 0;
    const Operand& given = trial.input(DType::f32, 1, count, amaxes);
    Operand& kept_rows = trial.in_out(DType::f32, length, count, 0.0);
    Operand& out = trial.in_out(DType::f32, 1, count, 0.0);
    const Operand& first = trial.input(DType::f32, 1, count, initial);
    kept_rows.set_values(history);
    trial.run(RollAmaxes{.amaxes = given.matrix(),
                         .history = kept_rows.matrix(),
                         .initial = first.matrix(),
                         .forecast = out.matrix(),
                         .state = Trial::pointer<StepState>(trial.in_out_value(state))});
    const std::vector<double> found = given.values();
    if (state.skip == 0) {
      for (size_t i = 0; i < found.size(); ++i) {
        history[static_cast<size_t>((step - 1) % length * count) + i] =
            found[i] > 0 && std::isfinite(found[i]) ? found[i] : 0;
        double largest = 0;
        for (size_t row = 0; row < length; ++row) largest = std::max(largest, history[row * count + i]);
        forecast[i] = largest > 0 ? largest : initial[i];
      }
      trial.expect_equal("forecast", out, forecast);
    }
    trial.expect_equal("history", kept_rows, history);
  }
}

void check_rejections(Trial& trial) {
  const Operand& x = trial.input(DType::bf16, 32, 96);
  const Case all{.rows = 32, .cols = 48, .bias = false, .with_rows = true, .with_transposed = true};
  const Copies copies(trial, DType::f8e4m3, 32, 48, 2);
  Operand& y = trial.output(DType::bf16, 32, 48);
  ActivationForward op{.kind = ActivationKind::swiglu, .x = x.matrix(), .bias = {}, .y = y.matrix()};
  op.fp8 = copies.matrices(all);
  trial.expect_rejected(op, "an output that is stored, too");
  op.y = {};
  op.x = x.matrix().column_range(0, 80);
  trial.expect_rejected(op, "halves of 40 columns");
  op.x = x.matrix();
  op.fp8.amax = {};
  trial.expect_rejected(op, "no amax");
}

void add_cases(Suite& suite) {
  for (const Kind& kind : kinds) {
    for (const Case& c : {Case{.rows = 16, .cols = 16, .bias = false, .with_rows = true, .with_transposed = true},
                          Case{.rows = 144, .cols = 272, .bias = true, .with_rows = true, .with_transposed = true},
                          Case{.rows = 272, .cols = 48, .bias = true, .with_rows = false, .with_transposed = true}}) {
      // The forecast is below the largest element, too: elements beyond it become the format's largest number.
      for (const double forecast : {8.0, 0.5}) {
        const std::string name = fmt::format("{} N={} f={} to FP8 copies, amax {}{}", kind.name, c.rows, c.cols,
                                             forecast, c.bias ? " bias" : "");
        suite.add<ActivationForward>(name, [=](Trial& t) { check_forward(t, kind, c, DType::f8e4m3, forecast); });
        suite.add<ActivationBackward>(name, [=](Trial& t) { check_backward(t, kind, c, DType::f8e5m2, forecast); });
      }
    }
  }
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {infinity, -infinity, std::nan("")})
    suite.add<Quantize>(fmt::format("{} under a forecast", value), [=](Trial& t) { check_not_finite(t, value); });
  suite.add<RollAmaxes>("a history of three steps", check_history);
  suite.add<ActivationForward>("rejections of FP8 copies", check_rejections);
}

// An FFN of GPT-2 1.5B, for a micro-batch on a GPU, for a part of it elsewhere.
void add_benches(Suite& suite) {
  constexpr Case c{.rows = 16384, .cols = 6400, .bias = true, .with_rows = true, .with_transposed = true};
  for (const Kind& kind : {kinds[1], kinds[2]}) {
    const auto wide = is_gated(kind.kind) ? 2 * c.cols : c.cols;
    const auto rows_of = [](Trial& trial) -> int64_t {
      return trial.backend().target().kind == Target::Kind::cpu ? 16 : c.rows;
    };
    const std::string name = fmt::format("{} f={} to FP8 copies", kind.name, c.cols);
    suite.add_bench<ActivationForward>(name, [=](Trial& trial) {
      const int64_t rows = rows_of(trial);
      const Copies copies(trial, DType::f8e4m3, rows, c.cols, 8);
      Fp8Copies to = copies.matrices(c);
      to.column_sums = {};
      trial.time(ActivationForward{.kind = kind.kind,
                                   .x = trial.input(DType::bf16, rows, wide).matrix(),
                                   .bias = trial.input(DType::bf16, 1, wide).matrix(),
                                   .y = {},
                                   .fp8 = to});
    });
    suite.add_bench<ActivationBackward>(name, [=](Trial& trial) {
      const int64_t rows = rows_of(trial);
      const Copies copies(trial, DType::f8e5m2, rows, wide, 8);
      trial.time(ActivationBackward{.kind = kind.kind,
                                    .x = trial.input(DType::bf16, rows, wide).matrix(),
                                    .bias = trial.input(DType::bf16, 1, wide).matrix(),
                                    .dy = trial.input(DType::bf16, rows, c.cols).matrix(),
                                    .dx = {},
                                    .fp8 = copies.matrices(c)});
    });
  }
}

void add_history_bench(Suite& suite) {
  suite.add_bench<RollAmaxes>("384 amaxes, 1024 steps", [](Trial& trial) {
    constexpr int64_t count = 384;
    StepState state;
    state.updates = 1;
    trial.time(RollAmaxes{.amaxes = trial.input(DType::f32, 1, count).matrix(),
                          .history = trial.in_out(DType::f32, 1024, count).matrix(),
                          .initial = trial.input(DType::f32, 1, count).matrix(),
                          .forecast = trial.in_out(DType::f32, 1, count).matrix(),
                          .state = Trial::pointer<StepState>(trial.in_out_value(state))});
  });
}

const Registration cases(add_cases);
const Registration benches(add_benches);
const Registration history_bench(add_history_bench);

}  // namespace
}  // namespace gptrain::ops_test::cases_fp8_activation
