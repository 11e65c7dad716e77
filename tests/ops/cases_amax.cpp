// Cases of Amax, and of the amax that other ops compute of their output.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "harness.h"

namespace gptrain::ops_test::cases_amax {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Checks that every part is written, and that the largest is the largest magnitude of `values`, or infinity.
void expect_amax(Trial& trial, const Operand& amax, const std::vector<double>& values) {
  double expected = 0;
  for (const double value : values) expected = std::max(expected, std::isfinite(value) ? std::abs(value) : infinity);
  const std::vector<double> parts = amax.values();
  const double found = *std::max_element(parts.begin(), parts.end());
  if (!std::all_of(parts.begin(), parts.end(), [](double part) { return part >= 0; }))
    return trial.fail("a part of the amax is no magnitude");
  if (found != expected) trial.fail(fmt::format("the amax is {}, and should be {}", found, expected));
}

// Checks that the op gives the same output with and without an amax.
template <typename Op>
void check_amax(Trial& trial, Op op, const Operand& output) {
  Operand& amax = trial.output(DType::f32, 1, amax_parts);
  trial.run(op);
  const std::vector<double> expected = output.values();
  op.amax = amax.matrix();
  trial.run(op);
  const bool finite = std::all_of(expected.begin(), expected.end(), [](double value) { return std::isfinite(value); });
  if (finite) trial.expect_equal("the output beside its amax", output, expected);
  expect_amax(trial, amax, output.values());
}

struct Shape {
  int64_t rows, cols;
  double special;  // one element of the input; 0: none
};

// Returns normal numbers with the special one at a random place.
const Operand& input(Trial& trial, const Shape& shape, int64_t cols) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape.rows * cols; ++i) values.push_back(trial.random.normal());
  if (shape.special != 0) values[static_cast<size_t>(trial.random.below(shape.rows * cols))] = shape.special;
  return trial.input(DType::bf16, shape.rows, cols, values, 8);
}

void norm_forward(Trial& trial, const Shape& shape, bool with_branch) {
  const Operand& x = input(trial, shape, shape.cols);
  const Operand& branch = trial.input(DType::bf16, shape.rows, shape.cols);
  const Operand& gamma = trial.input(DType::f32, 1, shape.cols);
  Operand& x_out = trial.output(DType::bf16, shape.rows, shape.cols);
  Operand& y = trial.output(DType::bf16, shape.rows, shape.cols, 8);
  Operand& rstd = trial.output(DType::f32, 1, shape.rows);
  check_amax(trial,
             NormForward{.kind = NormKind::rmsnorm,
                         .eps = 1e-5,
                         .token_rows = TokenRows::whole(shape.rows),
                         .x = x.matrix(),
                         .branch = with_branch ? branch.matrix() : Matrix(),
                         .dropout = {},
                         .x_out = with_branch ? x_out.matrix() : Matrix(),
                         .gamma = gamma.matrix(),
                         .beta = {},
                         .y = y.matrix(),
                         .mean = {},
                         .rstd = rstd.matrix()},
             y);
}

void norm_backward(Trial& trial, const Shape& shape) {
  const Operand& dy = input(trial, shape, shape.cols);
  const Operand& x = trial.input(DType::bf16, shape.rows, shape.cols);
  const Operand& gamma = trial.input(DType::f32, 1, shape.cols);
  const Operand& statistics =
      trial.input(DType::f32, 1, shape.rows, std::vector<double>(static_cast<size_t>(shape.rows), 0.75));
  const Operand& residual = trial.input(DType::bf16, shape.rows, shape.cols);
  Operand& dx = trial.output(DType::bf16, shape.rows, shape.cols, 8);
  Operand& gamma_sums = trial.output(DType::f64, 1, shape.cols);
  Operand& beta_sums = trial.output(DType::f64, 1, shape.cols);
  check_amax(trial,
             NormBackward{.kind = NormKind::layernorm,
                          .dy = dy.matrix(),
                          .x = x.matrix(),
                          .gamma = gamma.matrix(),
                          .mean = statistics.matrix(),
                          .rstd = statistics.matrix(),
                          .dx_residual = residual.matrix(),
                          .dx = dx.matrix(),
                          .gamma_sums = gamma_sums.matrix(),
                          .beta_sums = beta_sums.matrix()},
             dx);
}

void branch_backward(Trial& trial, const Shape& shape) {
  const Operand& dx = trial.input(DType::f32, shape.rows, shape.cols, input(trial, shape, shape.cols).values());
  Operand& d_branch = trial.output(DType::bf16, shape.rows, shape.cols, 8);
  check_amax(
      trial,
      BranchBackward{
          .token_rows = TokenRows::whole(shape.rows), .dx = dx.matrix(), .dropout = {}, .d_branch = d_branch.matrix()},
      d_branch);
}

constexpr ActivationKind kinds[] = {ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::swiglu,
                                    ActivationKind::geglu, ActivationKind::geglu_tanh};

void activation_forward(Trial& trial, const Shape& shape, ActivationKind kind) {
  const Operand& x = input(trial, shape, (is_gated(kind) ? 2 : 1) * shape.cols);
  Operand& y = trial.output(DType::bf16, shape.rows, shape.cols, 8);
  check_amax(trial, ActivationForward{.kind = kind, .x = x.matrix(), .bias = {}, .y = y.matrix()}, y);
}

void activation_backward(Trial& trial, const Shape& shape, ActivationKind kind) {
  const int64_t wide = (is_gated(kind) ? 2 : 1) * shape.cols;
  const Operand& x = trial.input(DType::bf16, shape.rows, wide);
  const Operand& dy = input(trial, shape, shape.cols);
  Operand& dx = trial.output(DType::bf16, shape.rows, wide, 8);
  check_amax(trial, ActivationBackward{.kind = kind, .x = x.matrix(), .bias = {}, .dy = dy.matrix(), .dx = dx.matrix()},
             dx);
}

void amax_alone(Trial& trial, const Shape& shape) {
  const Operand& x = input(trial, shape, shape.cols);
  Operand& amax = trial.output(DType::f32, 1, amax_parts);
  trial.run(Amax{x.matrix(), amax.matrix()});
  expect_amax(trial, amax, x.values());
}

void rejected(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 16, 16);
  Operand& y = trial.output(DType::f32, 16, 16);
  Operand& amax = trial.output(DType::f32, 1, amax_parts);
  trial.expect_rejected(Amax{x.matrix(), amax.matrix()}, "an amax of f32");
  ActivationForward op{.kind = ActivationKind::gelu, .x = x.matrix(), .bias = {}, .y = y.matrix()};
  op.amax = amax.matrix();
  trial.expect_rejected(op, "the amax of an output in f32");
  const Operand& narrow = trial.input(DType::bf16, 16, 16);
  trial.expect_rejected(Amax{narrow.matrix(), amax.matrix().column_range(0, 64)}, "too few parts");
  trial.expect_rejected(Amax{narrow.matrix(), {}}, "no amax");
}

void add_cases(Suite& suite) {
  for (const Shape& shape : {Shape{1, 16, 0},
                             {130, 272, 0},
                             {130, 272, -1e4},
                             {7, 33, 0},
                             {48, 64, infinity},
                             {48, 64, std::nan("")},
                             {48, 64, 3.3e38}}) {
    const std::string text = fmt::format("amax N={} cols={} one is {}", shape.rows, shape.cols, shape.special);
    for (const bool branch : {false, true})
      suite.add<NormForward>(text + (branch ? " branch" : ""),
                             [=](Trial& trial) { norm_forward(trial, shape, branch); });
    suite.add<NormBackward>(text, [=](Trial& trial) { norm_backward(trial, shape); });
    suite.add<BranchBackward>(text, [=](Trial& trial) { branch_backward(trial, shape); });
    for (const ActivationKind kind : kinds) {
      const std::string of_kind = fmt::format("{} kind {}", text, static_cast<int>(kind));
      suite.add<ActivationForward>(of_kind, [=](Trial& trial) { activation_forward(trial, shape, kind); });
      suite.add<ActivationBackward>(of_kind, [=](Trial& trial) { activation_backward(trial, shape, kind); });
    }
    if (shape.rows % 16 == 0 && shape.cols % 16 == 0)
      suite.add<Amax>(text, [=](Trial& trial) { amax_alone(trial, shape); });
  }
  suite.add<Amax>("N=256 cols=1040", [](Trial& trial) { amax_alone(trial, {256, 1040, 0}); });
  suite.add<Amax>("what is no amax", rejected);
}

// Sizes of a linear's input in GPT-2 1.5B; on a CPU a part of it.
void add_benches(Suite& suite) {
  suite.add_bench<Amax>("cols=1600 bf16", [](Trial& trial) {
    const int64_t rows = trial.backend().target().kind == Target::Kind::cpu ? 16 : 16384;
    const Operand& x = trial.input(DType::bf16, rows, 1600);
    Operand& amax = trial.output(DType::f32, 1, amax_parts);
    trial.time(Amax{x.matrix(), amax.matrix()});
  });
}

const Registration cases(add_cases);
const Registration benches(add_benches);

}  // namespace
}  // namespace gptrain::ops_test::cases_amax
