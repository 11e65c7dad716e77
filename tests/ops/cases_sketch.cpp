// Count sketches, and the elements of a vector at given places.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fmt/format.h>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "harness.h"

namespace gptrain::ops_test::cases_sketch {
namespace {

constexpr PhiloxKey key{3, 9};
constexpr int64_t updates = (int64_t{1} << 33) + 5;

// GPUs have no kernels of these ops.
void require_kernels(Trial& trial) {
  if (trial.backend().target().kind == Target::Kind::gpu) throw NotOnThisBackend{"sketches"};
}

const StepState* state_of(Trial& trial) {
  StepState state;
  state.updates = updates;
  return Trial::pointer<const StepState>(trial.in_out_value(state));
}

struct Place {
  size_t column;
  double sign;
};

// Returns an element's place by the formulas in SketchRow's comment.
Place place_of(int64_t row, int64_t element, int64_t columns) {
  const auto words = philox(
      key, {static_cast<uint32_t>(updates), static_cast<uint32_t>(updates >> 32), static_cast<uint32_t>(row), 0});
  const uint64_t a = words[0] + (uint64_t{words[1]} << 32), b = words[2] + (uint64_t{words[3]} << 32);
  const uint64_t z = a * static_cast<uint64_t>(element) + b;
  const uint64_t bits = z % (uint64_t{1} << 63) / (uint64_t{1} << 32);
  return {static_cast<size_t>(bits * static_cast<uint64_t>(columns) / (uint64_t{1} << 31)),
          z >= uint64_t{1} << 63 ? -1.0 : 1.0};
}

std::vector<double> normals(Trial& trial, int64_t n) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < n; ++i) numbers.push_back(trial.random.normal());
  return numbers;
}

// Runs a sketch of x and estimates from it, and returns the estimates.
std::vector<double> estimates_of(Trial& trial, const std::vector<double>& numbers, int64_t rows, int64_t columns) {
  const auto n = std::ssize(numbers);
  const Operand& x = trial.input(DType::f32, 1, n, numbers);
  Operand& table = trial.output(DType::f32, rows, columns);
  trial.run(CountSketch{state_of(trial), key, x.matrix(), table.matrix()});
  const Operand& sketch = trial.input(DType::f32, rows, columns, table.values());
  Operand& estimates = trial.output(DType::f32, 1, n);
  trial.run(EstimateSketch{state_of(trial), key, sketch.matrix(), estimates.matrix()});
  return estimates.values();
}

// Compares each entry of a sketch with its sum in float64, within the bound of the op's comment.
void check_sketch(Trial& trial, int64_t n, int64_t rows, int64_t columns) {
  require_kernels(trial);
  const Operand& x = trial.input(DType::f32, 1, n);
  Operand& table = trial.output(DType::f32, rows, columns);
  trial.run(CountSketch{state_of(trial), key, x.matrix(), table.matrix()});
  std::vector<double> sums(static_cast<size_t>(rows * columns)), sizes = sums, counts = sums;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      const Place place = place_of(r, i, columns);
      const size_t at = static_cast<size_t>(r * columns) + place.column;
      sums[at] += place.sign * x.at(0, i);
      sizes[at] += std::abs(x.at(0, i));
      ++counts[at];
    }
  }
  const std::vector<double> found = table.values();
  for (size_t at = 0; at < sums.size(); ++at)
    trial.expect_true(std::abs(found[at] - sums[at]) <= counts[at] * 0x1p-24 * sizes[at],
                      fmt::format("entry {} is {}, not {}", at, found[at], sums[at]));
}

// Compares each estimate with the median of its entries.
void check_estimates(Trial& trial, int64_t n, int64_t rows, int64_t columns) {
  require_kernels(trial);
  const Operand& table = trial.input(DType::f32, rows, columns);
  Operand& estimates = trial.output(DType::f32, 1, n);
  trial.run(EstimateSketch{state_of(trial), key, table.matrix(), estimates.matrix()});
  std::vector<double> expected;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> of_rows;
    for (int64_t r = 0; r < rows; ++r) {
      const Place place = place_of(r, i, columns);
      of_rows.push_back(place.sign * table.at(r, static_cast<int64_t>(place.column)));
    }
    std::sort(of_rows.begin(), of_rows.end());
    const size_t middle = of_rows.size() / 2;
    expected.push_back(rows % 2 == 1 ? of_rows[middle] : (of_rows[middle - 1] + of_rows[middle]) / 2);
  }
  for (double& value : expected) value = static_cast<double>(static_cast<float>(value));
  trial.expect_equal("estimates", estimates, expected);
}

// Checks the mean square of one row's errors, and the share of elements whose median of five is far off.
void check_bounds(Trial& trial) {
  require_kernels(trial);
  constexpr int64_t n = 6000, columns = 60;
  const std::vector<double> x = normals(trial, n);
  double squares = 0;
  for (const double value : x) squares += value * value;
  const auto errors = [&](int64_t rows) {
    std::vector<double> off = estimates_of(trial, x, rows, columns);
    for (size_t i = 0; i < off.size(); ++i) off[i] = std::abs(off[i] - x[i]);
    return off;
  };
  double of_row = 0;
  for (const double error : errors(1)) of_row += error * error / n;
  trial.expect_true(of_row < 1.5 * squares / columns && of_row > 0.5 * squares / columns,
                    fmt::format("the mean square of errors is {} of its bound", of_row * columns / squares));
  const std::vector<double> of_median = errors(5);
  const auto far = std::count_if(of_median.begin(), of_median.end(),
                                 [&](double error) { return error > 4 * std::sqrt(squares / columns); });
  trial.expect_true(static_cast<double>(far) <= std::pow(2.0 / 4, 5) * n, fmt::format("{} estimates are far off", far));
}

// A few large elements have the largest estimates, and infinity and NaN keep theirs.
void check_large(Trial& trial) {
  require_kernels(trial);
  constexpr int64_t n = 20'000, step = 2000;
  std::vector<double> x = normals(trial, n);
  for (size_t i = 7; i < x.size(); i += step) x[i] = i % 4000 == 7 ? 1000 : -1000;
  std::vector<double> found = estimates_of(trial, x, 5, 8000);
  int64_t large = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::abs(found[i]) < 500) continue;
    ++large;
    trial.expect_true(i % step == 7 && std::abs(found[i] - x[i]) < 50, fmt::format("estimate {} of {}", i, found[i]));
  }
  trial.expect_true(large == n / step, fmt::format("{} large estimates", large));
  x[7] = std::numeric_limits<double>::infinity();
  x[2007] = std::numeric_limits<double>::quiet_NaN();
  found = estimates_of(trial, x, 5, 8000);
  trial.expect_true(!std::isfinite(found[7]) && !std::isfinite(found[2007]), "infinity and NaN are lost");
  const auto lost = std::count_if(found.begin(), found.end(), [](double value) { return !std::isfinite(value); });
  trial.expect_true(lost < 10, fmt::format("{} estimates are not finite", lost));
}

void check_take(Trial& trial) {
  require_kernels(trial);
  const Operand& from = trial.input(DType::f32, 1, 300);
  std::vector<double> places, expected;
  for (int64_t i = 0; i < 41; ++i) {
    places.push_back(static_cast<double>(i * 7 + i % 3));
    expected.push_back(from.at(0, i * 7 + i % 3));
  }
  Operand& values = trial.output(DType::f32, 1, 41);
  trial.run(TakeAt{trial.input(DType::i32, 1, 41, places).matrix(), from.matrix(), values.matrix()});
  trial.expect_equal("values", values, expected);
}

void check_rejections(Trial& trial) {
  require_kernels(trial);
  const Matrix x = trial.input(DType::f32, 1, 8).matrix();
  trial.expect_rejected(CountSketch{state_of(trial), key, x, trial.output(DType::f32, 33, 4).matrix()}, "33 rows");
  trial.expect_rejected(EstimateSketch{state_of(trial), key, trial.input(DType::bf16, 3, 4).matrix(),
                                       trial.output(DType::f32, 1, 8).matrix()},
                        "a table in bf16");
}

void add_cases(Suite& suite) {
  for (const auto& [n, rows, columns] :
       {std::array<int64_t, 3>{1, 1, 1}, {1000, 5, 1}, {1003, 3, 77}, {20'001, 4, 500}, {300, 32, 2000}}) {
    const std::string shape = fmt::format("{} elements, {} x {}", n, rows, columns);
    suite.add<CountSketch>(shape, [n = n, r = rows, c = columns](Trial& t) { check_sketch(t, n, r, c); });
    suite.add<EstimateSketch>(shape, [n = n, r = rows, c = columns](Trial& t) { check_estimates(t, n, r, c); });
  }
  suite.add<EstimateSketch>("bounds of errors", check_bounds);
  suite.add<EstimateSketch>("large elements", check_large);
  suite.add<CountSketch>("rejections", check_rejections);
  suite.add<TakeAt>("41 of 300", check_take);
  suite.add_bench<CountSketch>("4 M elements, 5 x 80000", [](Trial& t) {
    require_kernels(t);
    t.time(CountSketch{state_of(t), key, t.input(DType::f32, 1, 4'000'000).matrix(),
                       t.output(DType::f32, 5, 80'000).matrix()});
  });
  suite.add_bench<EstimateSketch>("4 M elements, 5 x 80000", [](Trial& t) {
    require_kernels(t);
    t.time(EstimateSketch{state_of(t), key, t.input(DType::f32, 5, 80'000).matrix(),
                          t.output(DType::f32, 1, 4'000'000).matrix()});
  });
  suite.add_bench<TakeAt>("0.4 of 40 M elements", [](Trial& t) {
    require_kernels(t);
    std::vector<double> places;
    for (int64_t i = 0; i < 400'000; ++i) places.push_back(static_cast<double>(i * 100));
    t.time(TakeAt{t.input(DType::i32, 1, 400'000, places).matrix(), t.input(DType::f32, 1, 40'000'000).matrix(),
                  t.output(DType::f32, 1, 400'000).matrix()});
  });
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_sketch
