// Adafactor: second moments by row and column and for vectors, the norms of its steps, and the update.
#include <cmath>
#include <fmt/format.h>
#include <type_traits>

#include "reference.h"
#include "update_writes.h"

namespace gptrain::ops_test::cases_adafactor {
namespace {

// Three matrices of a buffer, whose moments and sums are in another order than their gradients. The rank has nothing of
// the first; of the second, [n, 2 n], some elements of a box from column 3 on that begin and end within rows; of the
// third, [40, 67], everything.
struct Parts {
  explicit Parts(int64_t n_)
      : n(n_),
        matrices{
            {5, 9, 0, 5, n + 40, 2 * n + 67}, {n, 2 * n, 14, n + 14, 0, 0}, {40, 67, 3 * n + 14, 3 * n + 54, n, 2 * n}},
        ranges{{.offset = 2740, .count = n * n - n - 2, .first = 5, .row = 1, .col = 3, .cols = n, .matrix = 1},
               {.offset = 8, .count = 40 * 67, .first = 0, .row = 0, .col = 0, .cols = 67, .matrix = 2}} {
    for (const MatrixRange& range : ranges) elements += range.count;
  }

  int64_t num_sums() const { return 3 * n + 14 + 107; }
  int64_t num_rows() const { return n + 45; }
  int64_t num_cols() const { return 2 * n + 76; }
  int64_t buffer() const { return 2740 + n * n; }

  int64_t n, elements = 0;
  std::vector<FactoredMatrix> matrices;
  std::vector<MatrixRange> ranges;
};

// Calls body(matrix, row, col, index in the buffer) for each element of the ranges, computed from the box's corner and
// width alone.
template <typename Body>
void for_each_element(const Parts& parts, const Body& body) {
  for (const MatrixRange& range : parts.ranges) {
    for (int64_t i = 0; i < range.count; ++i) {
      const int64_t in_box = range.first + i;
      body(parts.matrices[static_cast<size_t>(range.matrix)], range.row + in_box / range.cols,
           range.col + in_box % range.cols, range.offset + i);
    }
  }
}

template <typename Op>
void set_ranges(Trial& trial, const Parts& parts, Op& op) {
  op.matrices = Trial::pointer<const FactoredMatrix>(trial.input_array(parts.matrices));
  op.ranges = Trial::pointer<const MatrixRange>(trial.input_array(parts.ranges));
  op.num_ranges = std::ssize(parts.ranges);
  op.elements = parts.elements;
}

void check_sums(Trial& trial, int64_t n) {
  const Parts parts(n);
  const Operand& gradients = trial.input(DType::f32, 1, parts.buffer());
  Operand& sums = trial.output(DType::f64, 1, parts.num_sums());
  std::vector<double> expected(static_cast<size_t>(parts.num_sums()));
  for_each_element(parts, [&](const FactoredMatrix& matrix, int64_t row, int64_t col, int64_t at) {
    const double square = gradients.at(0, at) * gradients.at(0, at);
    expected[static_cast<size_t>(matrix.row_sums + row)] += square;
    expected[static_cast<size_t>(matrix.col_sums + col)] += square;
  });
  FactoredSums op;
  set_ranges(trial, parts, op);
  op.gradients = gradients.matrix();
  op.sums = sums.matrix();
  trial.run(op);
  trial.expect_near("sums", sums, expected, 1e-12 * static_cast<double>(n));
}

struct Moments {
  Operand &rows, &cols;

  Moments(Trial& trial, const Parts& parts)
      : rows(trial.in_out(DType::f32, 1, parts.num_rows())), cols(trial.in_out(DType::f32, 1, parts.num_cols())) {
    for (Operand* const moments : {&rows, &cols}) {
      for (int64_t i = 0; i < moments->matrix().cols; ++i) moments->set(0, i, 1e-3 + std::abs(moments->at(0, i)));
    }
  }
};

void check_moments(Trial& trial, int64_t n, bool skip) {
  const Parts parts(n);
  std::vector<double> squares;
  for (int64_t i = 0; i < parts.num_sums(); ++i) squares.push_back(i % 7 == 0 ? 0 : std::abs(trial.random.normal()));
  const Operand& sums = trial.input(DType::f64, 1, parts.num_sums(), squares);
  Moments moments(trial, parts);
  Operand& means = trial.in_out(DType::f64, 1, std::ssize(parts.matrices));
  const StepState state = state_after(3, skip);
  FactoredMoments op{.matrices = Trial::pointer<const FactoredMatrix>(trial.input_array(parts.matrices)),
                     .num_matrices = std::ssize(parts.matrices),
                     .state = Trial::pointer<const StepState>(trial.in_out_value(state)),
                     .beta2_decay = -0.7,
                     .eps = 1e-3,
                     .sums = sums.matrix(),
                     .rows = moments.rows.matrix(),
                     .cols = moments.cols.matrix(),
                     .means = means.matrix()};
  std::vector<double> rows = moments.rows.values(), cols = moments.cols.values(), of_rows = means.values();
  const double share = std::pow(3.0, -0.7), scale = static_cast<double>(state.gradient_scale);
  for (size_t m = 0; m < parts.matrices.size() && !skip; ++m) {
    const FactoredMatrix& matrix = parts.matrices[m];
    const auto advanced = [&](double moment, int64_t sum, int64_t count) {
      const double mean = scale * scale * squares[static_cast<size_t>(sum)] / static_cast<double>(count);
      return (1 - share) * moment + share * (mean + 1e-3);
    };
    double total = 0;
    for (int64_t i = 0; i < matrix.rows; ++i) {
      double& r = rows[static_cast<size_t>(matrix.row_moments + i)];
      total += r = advanced(r, matrix.row_sums + i, matrix.cols);
    }
    for (int64_t j = 0; j < matrix.cols; ++j) {
      double& c = cols[static_cast<size_t>(matrix.col_moments + j)];
      c = advanced(c, matrix.col_sums + j, matrix.rows);
    }
    of_rows[m] = total / static_cast<double>(matrix.rows);
  }
  trial.run(op);
  trial.expect_near("rows", moments.rows, rows, 0);
  trial.expect_near("cols", moments.cols, cols, 0);
  trial.expect_near("means", means, of_rows, skip ? 0 : 1e-6);
}

template <typename Real>
std::vector<Real> directions(const Parts& parts, const Operand& gradients, const Moments& moments, const Operand& means,
                             const StepState& state) {
  std::vector<Real> values = to_real<Real>(gradients.values());
  for_each_element(parts, [&](const FactoredMatrix& matrix, int64_t row, int64_t col, int64_t at) {
    const auto r = static_cast<Real>(moments.rows.at(0, matrix.row_moments + row));
    const auto c = static_cast<Real>(moments.cols.at(0, matrix.col_moments + col));
    const auto mean = static_cast<Real>(means.at(0, &matrix - parts.matrices.data()));
    Real& g = values[static_cast<size_t>(at)];
    g = g * static_cast<Real>(state.gradient_scale) / std::sqrt(r / mean) / std::sqrt(c);
  });
  return values;
}

void check_direction(Trial& trial, int64_t n, bool skip) {
  const Parts parts(n);
  Operand& gradients = trial.in_out(DType::f32, 1, parts.buffer());
  Moments moments(trial, parts);
  const Operand& means = trial.input(DType::f64, 1, 3, std::vector<double>{0.3, 0.7, 1.9});
  const StepState state = state_after(3, skip);
  FactoredDirection op;
  set_ranges(trial, parts, op);
  op.state = Trial::pointer<const StepState>(trial.in_out_value(state));
  op.rows = moments.rows.matrix();
  op.cols = moments.cols.matrix();
  op.means = means.matrix();
  op.gradients = gradients.matrix();
  const std::vector<double> before = gradients.values(), rows = moments.rows.values(), cols = moments.cols.values();
  const auto expected = directions<double>(parts, gradients, moments, means, state);
  const auto plain = directions<float>(parts, gradients, moments, means, state);
  trial.run(op);
  // The reference also has the elements between ranges.
  if (skip) trial.expect_equal("direction", gradients, before);
  if (!skip) trial.expect_close("direction", gradients, expected, to_double(plain), 3, 0x1p-24);
  trial.expect_equal("rows", moments.rows, rows);
  trial.expect_equal("cols", moments.cols, cols);
}

// Parts 2 to 5. Weights of part 5 are so small that eps2 counts.
constexpr int64_t first_part = 2, num_parts = 4;
std::vector<UpdateSegment> segments_here(int64_t size) { return segments_of_tensors(size, first_part); }

template <typename Real>
struct Vectors {
  std::vector<Real> direction, moment;
};

template <typename Real>
Vectors<Real> vector_reference(const AdafactorVectors& op, const std::vector<UpdateSegment>& segments,
                               const StepState& state, const Operand& gradients, const Operand& moment) {
  Vectors<Real> values{to_real<Real>(gradients.values()), to_real<Real>(moment.values())};
  const auto share = static_cast<Real>(std::pow(static_cast<double>(state.updates), op.beta2_decay));
  for (const UpdateSegment& segment : segments) {
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      Real &g = values.direction[static_cast<size_t>(i)], &v = values.moment[static_cast<size_t>(i)];
      g *= static_cast<Real>(state.gradient_scale);
      v += share * (g * g + static_cast<Real>(op.eps) - v);
      g /= std::sqrt(v);
    }
  }
  return values;
}

void check_vectors(Trial& trial, int64_t size, bool skip) {
  const std::vector<UpdateSegment> segments = segments_here(size);
  const StepState state = state_after(3, skip);
  Operand& gradients = trial.in_out(DType::f32, 1, elements_of(size));
  Operand& moment = trial.in_out(DType::f32, 1, elements_of(size));
  for (int64_t i = 0; i < elements_of(size); ++i) moment.set(0, i, std::abs(moment.at(0, i)));
  AdafactorVectors op;
  op.beta2_decay = -0.7;
  op.eps = 1e-3;
  set_segments(trial, op, segments, state);
  op.gradients = op.master = gradients.matrix();
  op.columns = {moment.matrix()};
  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  const auto expected = vector_reference<double>(op, changed, state, gradients, moment);
  const auto plain = vector_reference<float>(op, changed, state, gradients, moment);
  trial.run(op);
  trial.expect_close("direction", gradients, expected.direction, to_double(plain.direction), 3, 0x1p-23);
  trial.expect_close("moment", moment, expected.moment, to_double(plain.moment), 3, 0x1p-24);
}

AdafactorEma adafactor(bool scale_parameter) {
  AdafactorEma op{};
  op.clip_threshold = 0.8;
  op.eps2 = 0.05;
  op.scale_parameter = scale_parameter;
  op.weight_decay = 0.1;
  op.ema = 0.8;
  return op;
}

void check_norms(Trial& trial, int64_t size, bool masters, bool skip) {
  std::vector<UpdateSegment> segments = segments_here(size);
  Adafactor op = adafactor(true);
  set_segments(trial, op, segments, state_after(3, skip));
  const Operand& steps = trial.input(DType::f32, 1, elements_of(size));
  const Operand& weight = trial.input(masters ? DType::f32 : DType::bf16, 1, elements_of(size));
  Operand& sums = trial.output(DType::f64, num_parts, 2);
  op.gradients = steps.matrix();
  (masters ? op.master : op.weights) = weight.matrix();
  std::vector<double> expected(2 * num_parts);
  if (skip) segments.clear();
  for (const UpdateSegment& segment : segments) {
    double* const of_part = expected.data() + 2 * (segment.tensor - first_part);
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      of_part[0] += weight.at(0, i) * weight.at(0, i);
      of_part[1] += steps.at(0, i) * steps.at(0, i);
    }
  }
  trial.run(AdafactorNorms{.update = op, .first_tensor = first_part, .sums = sums.matrix()});
  trial.expect_near("sums", sums, expected, 1e-12 * static_cast<double>(size));
}

struct Step {
  const Operand &steps, &sums, &counts;
  UpdatedWeights weights;
};

template <typename Real>
struct StepValues {
  std::vector<Real> weight, ema;
};

template <typename Real>
StepValues<Real> step_reference(const AdafactorEma& op, const std::vector<UpdateSegment>& segments, const Step& step) {
  const StepState state = state_after(3);
  StepValues<Real> values{to_real<Real>(step.weights.updated.values()), to_real<Real>(step.weights.ema.values())};
  const Real share = (1 - static_cast<Real>(op.ema)) / (1 - std::pow(static_cast<Real>(op.ema), Real{3}));
  for (const UpdateSegment& segment : segments) {
    const auto rms = [&](int64_t which) {
      return std::sqrt(static_cast<Real>(step.sums.at(segment.tensor, which) / step.counts.at(0, segment.tensor)));
    };
    auto rate = static_cast<Real>(state.learning_rate);
    if (op.scale_parameter) rate *= std::max(static_cast<Real>(op.eps2), rms(0));
    const Real decay = segment.decay != 0
                           ? static_cast<Real>(segment.rate_factor) * rate * static_cast<Real>(op.weight_decay)
                           : Real{0};
    const Real clip = std::max(Real{1}, rms(1) / static_cast<Real>(op.clip_threshold));
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      Real& w = values.weight[static_cast<size_t>(i)];
      w -= decay * w + static_cast<Real>(segment.rate_factor) * rate / clip * static_cast<Real>(step.steps.at(0, i));
      Real& average = values.ema[static_cast<size_t>(i)];
      average += share * (w - average);
    }
  }
  return values;
}

// `Tested` is Adafactor or AdafactorEma. Steps are not divided by the gradients' scale.
template <typename Tested>
void check_step(Trial& trial, int64_t size, bool scale_parameter, Writes writes, bool skip) {
  const std::vector<UpdateSegment> segments = segments_here(size);
  const int64_t elements = elements_of(size), all = first_part + num_parts;
  std::vector<double> squares, counts;
  for (int64_t i = 0; i < all; ++i) {
    counts.push_back(static_cast<double>(20 + 3 * i));
    squares.push_back(i == 5 ? 1e-4 : static_cast<double>(3 + i));  // squares of weights
    squares.push_back(i == 4 ? 0.5 : static_cast<double>(40 + i));  // squares of steps: part 4's is not clipped
  }
  const Step step{.steps = trial.input(DType::f32, 1, elements),
                  .sums = trial.input(DType::f64, all, 2, squares),
                  .counts = trial.input(DType::f64, 1, all, counts),
                  .weights = {trial, elements, writes}};
  AdafactorEma op = adafactor(scale_parameter);
  set_segments(trial, op, segments, state_after(3, skip));
  op.gradients = step.steps.matrix();
  op.sums = step.sums.matrix();
  op.counts = step.counts.matrix();
  step.weights.set_operands(op);
  constexpr bool averages = std::is_same_v<Tested, AdafactorEma>;
  if (averages) op.columns = {step.weights.ema.matrix()};
  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  const auto expected = step_reference<double>(op, changed, step);
  const auto plain = step_reference<float>(op, changed, step);
  trial.run(static_cast<const Tested&>(op));
  if (averages) step.weights.expect_average(expected.ema, to_double(plain.ema));
  if (!averages) step.weights.expect_no_average();
  step.weights.expect(changed, expected.weight, to_double(plain.weight));
}

void check_rejections(Trial& trial) {
  Adafactor step = adafactor(true);
  set_segments(trial, step, segments_here(100), state_after(3));
  step.gradients = trial.input(DType::f32, 1, elements_of(100)).matrix();
  step.master = trial.in_out(DType::f32, 1, elements_of(100)).matrix();
  step.sums = trial.input(DType::f64, 4, 2).matrix();
  step.counts = trial.input(DType::f64, 1, 3).matrix();
  trial.expect_rejected(step, "counts of other parts than the sums");
  FactoredMoments moments{.beta2_decay = -0.8,
                          .eps = 1e-30,
                          .sums = trial.input(DType::f64, 1, 9).matrix(),
                          .rows = trial.in_out(DType::f32, 1, 4).matrix(),
                          .cols = trial.in_out(DType::f32, 1, 5).matrix(),
                          .means = trial.in_out(DType::f64, 1, 2).matrix()};
  moments.num_matrices = 1;
  trial.expect_rejected(moments, "two means for a matrix");
  moments.num_matrices = 2;
  moments.beta2_decay = 0;
  trial.expect_rejected(moments, "nothing of the second moment is kept");
  FactoredSums sums{.num_ranges = 1,
                    .elements = 9,
                    .gradients = trial.input(DType::f32, 1, 8).matrix(),
                    .sums = trial.output(DType::f64, 1, 9).matrix()};
  trial.expect_rejected(sums, "ranges of more than the buffer");
  sums.elements = 8;
  sums.sums = trial.output(DType::f32, 1, 9).matrix();
  trial.expect_rejected(sums, "sums in f32");
  trial.expect_rejected(FactoredDirection{.num_ranges = 9,
                                          .elements = 8,
                                          .rows = moments.rows,
                                          .cols = moments.cols,
                                          .means = moments.means,
                                          .gradients = trial.in_out(DType::f32, 1, 8).matrix()},
                        "empty ranges");
}

constexpr int64_t bench_rows = 4000, bench_cols = 10000;

// Times one matrix of 40 M elements.
template <typename Op>
void time_factored(Trial& trial, Op op) {
  const std::vector<FactoredMatrix> matrices{{.rows = bench_rows,
                                              .cols = bench_cols,
                                              .row_sums = 0,
                                              .col_sums = bench_rows,
                                              .row_moments = 0,
                                              .col_moments = 0}};
  op.matrices = Trial::pointer<const FactoredMatrix>(trial.input_array(matrices));
  StepState state;
  state.updates = 2;
  if constexpr (requires { op.ranges; }) {
    const std::vector<MatrixRange> ranges{{.offset = 0,
                                           .count = bench_rows * bench_cols,
                                           .first = 0,
                                           .row = 0,
                                           .col = 0,
                                           .cols = bench_cols,
                                           .matrix = 0}};
    op.ranges = Trial::pointer<const MatrixRange>(trial.input_array(ranges));
    op.num_ranges = 1;
    op.elements = bench_rows * bench_cols;
    op.gradients = trial.in_out(DType::f32, 1, op.elements).matrix();
  }
  if constexpr (requires { op.sums; }) op.sums = trial.in_out(DType::f64, 1, bench_rows + bench_cols, 0).matrix();
  if constexpr (requires { op.means; }) {
    Operand& rows = trial.in_out(DType::f32, 1, bench_rows);
    Operand& cols = trial.in_out(DType::f32, 1, bench_cols);
    for (int64_t i = 0; i < bench_rows; ++i) rows.set(0, i, 1);
    for (int64_t i = 0; i < bench_cols; ++i) cols.set(0, i, 1);
    op.state = Trial::pointer<const StepState>(trial.in_out_value(state));
    op.rows = rows.matrix();
    op.cols = cols.matrix();
    op.means = trial.in_out(DType::f64, 1, 1).matrix();
  }
  trial.time(op);
}

template <typename Op>
void time_step(Trial& trial) {
  Op op{};
  static_cast<Adafactor&>(op) = adafactor(true);
  if constexpr (std::is_same_v<Op, AdafactorEma>) op.ema = 0.8;
  op = bench_operands(trial, op);
  op.weights = trial.output(DType::bf16, 1, bench_elements).matrix();
  op.sums = trial.input(DType::f64, 1, 2).matrix();
  op.counts = trial.input(DType::f64, 1, 1, std::vector<double>{static_cast<double>(bench_elements)}).matrix();
  trial.time(op);
}

void add_benches(Suite& suite) {
  suite.add_bench<FactoredSums>("[4000, 10000]", [](Trial& t) { time_factored(t, FactoredSums{}); });
  suite.add_bench<FactoredMoments>("[4000, 10000]", [](Trial& t) {
    FactoredMoments op;
    op.num_matrices = 1;
    op.beta2_decay = -0.8;
    op.eps = 1e-30;
    time_factored(t, op);
  });
  suite.add_bench<FactoredDirection>("[4000, 10000]", [](Trial& t) { time_factored(t, FactoredDirection{}); });
  suite.add_bench<AdafactorVectors>("40 M elements", [](Trial& t) {
    AdafactorVectors op;
    op.beta2_decay = -0.8;
    op.eps = 1e-30;
    t.time(bench_operands(t, op));
  });
  suite.add_bench<Adafactor>("40 M elements, bf16 weights", time_step<Adafactor>);
  suite.add_bench<AdafactorEma>("40 M elements, bf16 weights", time_step<AdafactorEma>);
  suite.add_bench<AdafactorNorms>("40 M elements", [](Trial& t) {
    t.time(AdafactorNorms{bench_operands(t, Adafactor(adafactor(true))), 0, t.output(DType::f64, 1, 2).matrix()});
  });
}

void add_adafactor_cases(Suite& suite) {
  for (const int64_t n : {8, 33, 200, 1100}) {  // the last: more rows than a launch has blocks
    const std::string name = fmt::format("[{}, {}]", n, 2 * n);
    suite.add<FactoredSums>(name, [=](Trial& t) { check_sums(t, n); });
    suite.add<FactoredMoments>(name, [=](Trial& t) { check_moments(t, n, false); });
    suite.add<FactoredDirection>(name, [=](Trial& t) { check_direction(t, n, false); });
  }
  suite.add<FactoredMoments>("skipped", [](Trial& t) { check_moments(t, 8, true); });
  suite.add<FactoredDirection>("skipped", [](Trial& t) { check_direction(t, 8, true); });
  suite.add<FactoredMoments>("rejections", check_rejections);
  for (const int64_t size : {1000, 100003}) {
    const std::string name = fmt::format("segment of {}", size);
    suite.add<AdafactorVectors>(name, [=](Trial& t) { check_vectors(t, size, false); });
    suite.add<AdafactorNorms>(name, [=](Trial& t) { check_norms(t, size, true, false); });
    suite.add<AdafactorNorms>(name + ", bf16 weights", [=](Trial& t) { check_norms(t, size, false, false); });
  }
  suite.add<AdafactorVectors>("skipped", [](Trial& t) { check_vectors(t, 100, true); });
  suite.add<AdafactorNorms>("skipped", [](Trial& t) { check_norms(t, 100, true, true); });
  const auto add = [&](int64_t size, Writes writes, const std::string& name, bool scaled, bool skip = false) {
    suite.add<Adafactor>(name, [=](Trial& t) { check_step<Adafactor>(t, size, scaled, writes, skip); });
    suite.add<AdafactorEma>(name, [=](Trial& t) { check_step<AdafactorEma>(t, size, scaled, writes, skip); });
  };
  add(1000, Writes::masters, "segment of 1000", true);
  add(1000, Writes::masters, "segment of 1000, lr as it is", false);
  add(100003, Writes::masters_and_weights, "segment of 100003, bf16 weights", true);
  add(1000, Writes::weights, "segment of 1000, stochastic rounding", true);
  add(100, Writes::masters_and_weights, "skipped", true, true);
  add_benches(suite);
}

const Registration adafactor_cases(add_adafactor_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_adafactor
