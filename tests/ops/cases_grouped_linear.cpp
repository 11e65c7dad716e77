// Cases of the linears of experts.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "expert_rows.h"
#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_grouped_linear {
namespace {

struct Shape {
  ExpertRows rows;
  int64_t in, out;
};

// Experts without rows at both ends and between, one row, more rows than a tile, no rows at all, a bound that is met;
// rows of whole cache lines, which are written past the caches; sums in several chunks, for few rows and for more; more
// rows than a block of floats.
const Shape shapes[] = {{{{0, 3, 0, 1, 70, 0}, 81}, 13, 5},
                        {{{7}, 7}, 64, 64},
                        {{{0, 0}, 4}, 9, 3},
                        {{{65, 64, 1}, 130}, 66, 127},
                        {{{2, 130, 5}, 140}, 31, 17},
                        {{{1, 1, 1, 1}, 4}, 1, 1},
                        {{{3, 70}, 73}, 80, 96},
                        {{{9, 0, 40}, 49}, 96, 300},
                        {{{150}, 150}, 1056, 24},
                        {{{530, 0, 70}, 600}, 150, 75}};

std::string name_of(const Shape& shape, DType dtype) {
  return fmt::format("E={} R={} of {} in={} out={} {}", shape.rows.experts(), shape.rows.used(), shape.rows.bound,
                     shape.in, shape.out, dtype_name(dtype));
}

// Compares rows [0, used) with sums of so many terms in double, within the error of sums in float.
template <typename Sum>
void expect_rows(Trial& trial, const Operand& actual, const ExpertRows& rows, int64_t terms, const Sum& sum) {
  constexpr int64_t few_terms = 256;
  const double tolerance = 0x1p-20 * std::max(1.0, std::sqrt(static_cast<double>(terms) / few_terms));
  const Matrix view = actual.matrix();
  const std::vector<double> values = used_values(trial, actual, rows.used());
  double largest = 0;
  std::vector<double> expected;
  rows.each([&](int64_t expert, int64_t row) {
    for (int64_t col = 0; col < view.cols; ++col) expected.push_back(sum(expert, row, col));
  });
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < values.size(); ++i) {
    const double unit = view.dtype == DType::bf16 ? 0x1p-8 : 0x1p-23;
    if (std::abs(values[i] - expected[i]) <= unit * std::abs(expected[i]) + tolerance * largest) continue;
    trial.fail(fmt::format("element {} is {}, reference {}", i, values[i], expected[i]));
    return;
  }
}

void check_forward(Trial& trial, const Shape& shape, DType dtype, int64_t gap) {
  const ExpertRows& rows = shape.rows;
  const Operand& x = poisoned_input(trial, dtype, rows.bound, shape.in, rows.used(), gap);
  const Operand& w = trial.input(dtype, rows.experts() * shape.out, shape.in, 0.2, gap);
  Operand& y = trial.output(dtype, rows.bound, shape.out, gap);
  trial.run(GroupedLinearForward{.x = x.matrix(), .w = w.matrix(), .offsets = rows.matrix(trial), .y = y.matrix()});
  expect_rows(trial, y, rows, shape.in, [&](int64_t expert, int64_t row, int64_t col) {
    double sum = 0;
    for (int64_t i = 0; i < shape.in; ++i) sum += x.at(row, i) * w.at(expert * shape.out + col, i);
    return sum;
  });
}

void check_backward_input(Trial& trial, const Shape& shape, DType dtype, int64_t gap) {
  const ExpertRows& rows = shape.rows;
  const Operand& dy = poisoned_input(trial, dtype, rows.bound, shape.out, rows.used(), gap);
  const Operand& w = trial.input(dtype, rows.experts() * shape.out, shape.in, 0.2, gap);
  Operand& dx = trial.output(dtype, rows.bound, shape.in, gap);
  trial.run(
      GroupedLinearBackwardInput{.dy = dy.matrix(), .w = w.matrix(), .offsets = rows.matrix(trial), .dx = dx.matrix()});
  expect_rows(trial, dx, rows, shape.out, [&](int64_t expert, int64_t row, int64_t col) {
    double sum = 0;
    for (int64_t o = 0; o < shape.out; ++o) sum += dy.at(row, o) * w.at(expert * shape.out + o, col);
    return sum;
  });
}

void check_backward_weight(Trial& trial, const Shape& shape, DType dtype, bool accumulate, int64_t gap) {
  const ExpertRows& rows = shape.rows;
  const Operand& x = poisoned_input(trial, dtype, rows.bound, shape.in, rows.used(), gap);
  const Operand& dy = poisoned_input(trial, dtype, rows.bound, shape.out, rows.used(), gap);
  const int64_t all = rows.experts() * shape.out;
  Operand& dw =
      accumulate ? trial.in_out(DType::f32, all, shape.in, 1, gap) : trial.output(DType::f32, all, shape.in, gap);
  std::vector<double> expected = accumulate ? dw.values() : std::vector<double>(static_cast<size_t>(all * shape.in));
  rows.each([&](int64_t expert, int64_t row) {
    for (int64_t o = 0; o < shape.out; ++o)
      for (int64_t i = 0; i < shape.in; ++i)
        expected[static_cast<size_t>((expert * shape.out + o) * shape.in + i)] += dy.at(row, o) * x.at(row, i);
  });
  trial.run(GroupedLinearBackwardWeight{
      .x = x.matrix(), .dy = dy.matrix(), .offsets = rows.matrix(trial), .dw = dw.matrix(), .accumulate = accumulate});
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  trial.expect_near("dw", dw, expected, 0x1p-20 * largest);
}

void check_rejections(Trial& trial) {
  const ExpertRows rows{{2, 1}, 3};
  const Matrix offsets = rows.matrix(trial);
  const Operand& x = trial.input(DType::f32, 3, 4);
  const Operand& w = trial.input(DType::f32, 10, 4);
  const Operand& odd = trial.input(DType::f32, 9, 4);
  Operand& y = trial.output(DType::f32, 3, 5);
  trial.expect_rejected(GroupedLinearForward{.x = x.matrix(), .w = odd.matrix(), .offsets = offsets, .y = y.matrix()},
                        "half a matrix");
  trial.expect_rejected(
      GroupedLinearForward{.x = x.matrix(), .w = w.matrix(), .offsets = offsets.column_range(0, 1), .y = y.matrix()},
      "no experts");
  trial.expect_rejected(
      GroupedLinearForward{.x = x.matrix().row_range(0, 2), .w = w.matrix(), .offsets = offsets, .y = y.matrix()},
      "fewer rows of x");
}

// Benches a mixture, and one product of as many rows beside it.
void add_benches(Suite& suite, DType dtype, int64_t experts, int64_t rows_each, int64_t in, int64_t out) {
  const ExpertRows rows{std::vector<int64_t>(static_cast<size_t>(experts), rows_each), experts * rows_each};
  const std::string name = name_of({rows, in, out}, dtype);
  suite.add_bench<GroupedLinearForward>(name, [=](Trial& t) {
    t.time(GroupedLinearForward{.x = t.input(dtype, rows.bound, in).matrix(),
                                .w = t.input(dtype, experts * out, in).matrix(),
                                .offsets = rows.matrix(t),
                                .y = t.output(dtype, rows.bound, out).matrix()});
  });
  suite.add_bench<GroupedLinearBackwardInput>(name, [=](Trial& t) {
    t.time(GroupedLinearBackwardInput{.dy = t.input(dtype, rows.bound, out).matrix(),
                                      .w = t.input(dtype, experts * out, in).matrix(),
                                      .offsets = rows.matrix(t),
                                      .dx = t.output(dtype, rows.bound, in).matrix()});
  });
  suite.add_bench<GroupedLinearBackwardWeight>(name, [=](Trial& t) {
    t.time(GroupedLinearBackwardWeight{.x = t.input(dtype, rows.bound, in).matrix(),
                                       .dy = t.input(dtype, rows.bound, out).matrix(),
                                       .offsets = rows.matrix(t),
                                       .dw = t.output(DType::f32, experts * out, in).matrix(),
                                       .accumulate = false});
  });
  const std::string beside =
      fmt::format("beside experts, N={} in={} out={} {}", rows.bound, in, out, dtype_name(dtype));
  suite.add_bench<LinearForward>(beside, [=](Trial& t) {
    t.time(LinearForward{.x = t.input(dtype, rows.bound, in).matrix(),
                         .w = t.input(dtype, out, in).matrix(),
                         .bias = {},
                         .y = t.output(dtype, rows.bound, out).matrix()});
  });
  suite.add_bench<LinearBackwardInput>(beside, [=](Trial& t) {
    t.time(LinearBackwardInput{.dy = t.input(dtype, rows.bound, out).matrix(),
                               .w = t.input(dtype, out, in).matrix(),
                               .dx = t.output(dtype, rows.bound, in).matrix()});
  });
}

void add_cases(Suite& suite) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& shape : shapes) {
      for (const int64_t gap : {0, 3}) {
        const std::string name = name_of(shape, dtype) + (gap > 0 ? " strided" : "");
        suite.add<GroupedLinearForward>(name, [=](Trial& t) { check_forward(t, shape, dtype, gap); });
        suite.add<GroupedLinearBackwardInput>(name, [=](Trial& t) { check_backward_input(t, shape, dtype, gap); });
        suite.add<GroupedLinearBackwardWeight>(name,
                                               [=](Trial& t) { check_backward_weight(t, shape, dtype, gap > 0, gap); });
      }
    }
    add_benches(suite, dtype, 8, 64, 768, 1024);
    add_benches(suite, dtype, 8, 128, 768, 1024);
    add_benches(suite, dtype, 8, 512, 768, 1024);
    add_benches(suite, dtype, 128, 8, 768, 1024);
  }
  suite.add<GroupedLinearForward>("rejections", check_rejections);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_grouped_linear
