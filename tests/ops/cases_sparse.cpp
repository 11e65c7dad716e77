// The largest elements of a vector.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <numeric>
#include <vector>

#include "harness.h"

namespace gptrain::ops_test::cases_sparse {
namespace {

// GPUs have no kernels of these ops.
void require_kernels(Trial& trial) {
  if (trial.backend().target().kind == Target::Kind::gpu) throw NotOnThisBackend{"sparse sums"};
}

// Returns the indices of the k largest elements, found by sorting.
std::vector<double> largest(const std::vector<double>& x, int64_t k) {
  std::vector<int64_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](int64_t i) {
    const double value = std::abs(x[static_cast<size_t>(i)]);
    return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return size(a) > size(b); });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return {order.begin(), order.end()};
}

void check_selection(Trial& trial, const std::vector<double>& numbers, int64_t k) {
  require_kernels(trial);
  const auto n = std::ssize(numbers);
  const Operand& x = trial.input(DType::f32, 1, n, numbers);
  Operand& indices = trial.output(DType::i32, 1, k);
  Operand& values = trial.output(DType::f32, 1, k);
  trial.run(SelectLargest{x.matrix(), indices.matrix(), values.matrix()});
  const std::vector<double> expected = largest(x.values(), k);
  trial.expect_equal("indices", indices, expected);
  std::vector<double> selected;
  double all = 0, left_out = 0;
  for (const double value : x.values()) all += value * value;
  left_out = all;
  for (const double i : expected) {
    selected.push_back(x.at(0, static_cast<int64_t>(i)));
    left_out -= selected.back() * selected.back();
  }
  trial.expect_equal("values", values, selected);
  trial.expect_true(left_out <= (1 - static_cast<double>(k) / static_cast<double>(n)) * all + 1e-9 * all,
                    "what is left out is larger than its bound");
}

// Returns numbers of which many have equal magnitudes, and some are 0 or subnormal.
std::vector<double> with_ties(Trial& trial, int64_t n) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < n; ++i) {
    const double step = static_cast<double>(trial.random.below(9)) - 4;
    numbers.push_back(i % 11 == 0 ? step * 1e-42 : step * std::exp2(static_cast<double>(trial.random.below(3))));
  }
  return numbers;
}

std::vector<double> normals(Trial& trial, int64_t n) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < n; ++i) numbers.push_back(trial.random.normal());
  return numbers;
}

void check_infinite(Trial& trial) {
  require_kernels(trial);
  std::vector<double> numbers = normals(trial, 50);
  numbers[7] = std::numeric_limits<double>::infinity();
  numbers[31] = -std::numeric_limits<double>::infinity();
  const Operand& x = trial.input(DType::f32, 1, 50, numbers);
  Operand& indices = trial.output(DType::i32, 1, 2);
  Operand& values = trial.output(DType::f32, 1, 2);
  trial.run(SelectLargest{x.matrix(), indices.matrix(), values.matrix()});
  trial.expect_equal("indices", indices, {7, 31});
}

void check_add(Trial& trial, float factor) {
  require_kernels(trial);
  constexpr int64_t n = 300, k = 41;
  std::vector<double> places;
  for (int64_t i = 0; i < k; ++i) places.push_back(static_cast<double>(i * 7 + i % 3));
  const Operand& values = trial.input(DType::f32, 1, k);
  Operand& to = trial.in_out(DType::f32, 1, n);
  std::vector<double> expected = to.values();
  for (int64_t i = 0; i < k; ++i)
    expected[static_cast<size_t>(places[static_cast<size_t>(i)])] += static_cast<double>(factor) * values.at(0, i);
  trial.run(AddAt{.indices = trial.input(DType::i32, 1, k, places).matrix(),
                  .values = values.matrix(),
                  .factor = factor,
                  .to = to.matrix()});
  for (double& value : expected) value = static_cast<double>(static_cast<float>(value));
  trial.expect_equal("sum", to, expected);
}

void check_rejections(Trial& trial) {
  require_kernels(trial);
  const Matrix x = trial.input(DType::f32, 1, 8).matrix();
  trial.expect_rejected(
      SelectLargest{x, trial.output(DType::i32, 1, 9).matrix(), trial.output(DType::f32, 1, 9).matrix()},
      "more than there are");
  trial.expect_rejected(
      SelectLargest{x, trial.output(DType::i32, 1, 3).matrix(), trial.output(DType::f32, 1, 4).matrix()},
      "other numbers of indices and values");
}

void add_cases(Suite& suite) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {1000, 1}, {1000, 137}, {1000, 1000}, {70001, 700}}) {
    suite.add<SelectLargest>(fmt::format("{} of {}", k, n),
                             [n = n, k = k](Trial& t) { check_selection(t, normals(t, n), k); });
    suite.add<SelectLargest>(fmt::format("{} of {} with ties", k, n),
                             [n = n, k = k](Trial& t) { check_selection(t, with_ties(t, n), k); });
  }
  suite.add<SelectLargest>("infinities", check_infinite);
  suite.add<SelectLargest>("rejections", check_rejections);
  for (const float factor : {1.0F, -1.0F})
    suite.add<AddAt>(fmt::format("factor {}", factor), [=](Trial& t) { check_add(t, factor); });
  suite.add_bench<SelectLargest>("0.4 of 40 M elements", [](Trial& t) {
    require_kernels(t);
    t.time(SelectLargest{t.input(DType::f32, 1, 40'000'000).matrix(), t.output(DType::i32, 1, 400'000).matrix(),
                         t.output(DType::f32, 1, 400'000).matrix()});
  });
  suite.add_bench<AddAt>("0.4 of 40 M elements", [](Trial& t) {
    require_kernels(t);
    std::vector<double> places;
    for (int64_t i = 0; i < 400'000; ++i) places.push_back(static_cast<double>(i * 100));
    t.time(AddAt{.indices = t.input(DType::i32, 1, 400'000, places).matrix(),
                 .values = t.input(DType::f32, 1, 400'000).matrix(),
                 .factor = 1,
                 .to = t.in_out(DType::f32, 1, 40'000'000).matrix()});
  });
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_sparse
