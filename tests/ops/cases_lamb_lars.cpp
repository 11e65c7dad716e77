// Updates scaled by norms of tensors, LAMB and LARS, with and without an average of the weights, and the sums that they
// need.
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <type_traits>

#include "reference.h"
#include "update_writes.h"

namespace gptrain::ops_test::cases_lamb_lars {
namespace {

constexpr int64_t first_tensor = 5, num_tensors = 5;

// Tensors 5 to 8 have segments; the weights of 8 are zero. 9 has no segment.
std::vector<UpdateSegment> segments_here(int64_t size) { return segments_of_tensors(size, first_tensor); }

template <typename Real>
using Columns = std::array<Real, 2>;

// Returns the value that the formula measures; updates `columns`.
template <typename Real>
Real measured(const Lamb& op, Real gradient, Real weight, Real decay, int64_t updates, Columns<Real>& columns) {
  const auto of_decay = [&](double rate, Real& moment, Real value) {
    moment = static_cast<Real>(rate) * moment + static_cast<Real>(1 - rate) * value;
    return moment / (1 - std::pow(static_cast<Real>(rate), static_cast<Real>(updates)));
  };
  const Real m = of_decay(op.beta1, columns[0], gradient);
  const Real v = of_decay(op.beta2, columns[1], gradient * gradient);
  return m / (std::sqrt(v) + static_cast<Real>(op.eps)) + decay * weight;
}
template <typename Real>
Real measured(const Lars&, Real gradient, Real, Real, int64_t, Columns<Real>&) {
  return gradient;
}

// Returns the learning rate's factor for a tensor with these norms.
template <typename Real>
Real trust(const Lamb&, Real weights, Real measured, Real) {
  return weights / measured;
}
template <typename Real>
Real trust(const Lars& op, Real weights, Real measured, Real decay) {
  return static_cast<Real>(op.trust) * weights / (measured + decay * weights);
}

template <typename Real>
Real updated(const Lamb& op, Real gradient, Real weight, Real rate, Real decay, int64_t updates,
             Columns<Real>& columns) {
  return weight - rate * measured(op, gradient, weight, decay, updates, columns);
}
template <typename Real>
Real updated(const Lars& op, Real gradient, Real weight, Real rate, Real decay, int64_t, Columns<Real>& columns) {
  columns[0] = static_cast<Real>(op.momentum) * columns[0] + rate * (gradient + decay * weight);
  return weight - columns[0];
}

struct Buffers {
  const Operand& gradients;
  std::array<Operand*, 2> moments;
  UpdatedWeights weights;
};

// Returns operands of `op`, which is a TensorUpdate or derives from one. The second moments are squares.
template <typename Op>
Buffers add_operands(Trial& trial, Op& op, int64_t size, Writes writes, DType weights_dtype, bool skip) {
  const std::vector<UpdateSegment> segments = segments_here(size);
  const int64_t elements = elements_of(size);
  const auto moment = [&]() -> Operand* { return &trial.in_out(DType::f32, 1, elements, 0.1); };
  const Buffers buffers{
      trial.input(DType::f32, 1, elements), {moment(), moment()}, {trial, elements, writes, weights_dtype}};
  for (int64_t i = 0; i < elements; ++i) buffers.moments[1]->set(0, i, std::abs(buffers.moments[1]->at(0, i)));
  for (int64_t i = segments.back().offset; i < elements; ++i) buffers.weights.updated.set(0, i, 0);
  set_segments(trial, op, segments, state_after(3, skip));
  op.gradients = buffers.gradients.matrix();
  for (size_t i = 0; i < buffers.moments.size(); ++i) op.columns[i] = buffers.moments[i]->matrix();
  buffers.weights.set_operands(op);
  return buffers;
}

template <typename Op>
void check_sums(Trial& trial, Op update, int64_t size, Writes writes, bool skip) {
  const Buffers buffers = add_operands(trial, update, size, writes, DType::bf16, skip);
  Operand& sums = trial.output(DType::f64, num_tensors, 2);
  const StepState state = state_after(3, skip);
  std::vector<double> expected(2 * num_tensors);
  const std::vector<UpdateSegment> measures = skip ? std::vector<UpdateSegment>{} : segments_here(size);
  for (const UpdateSegment& segment : measures) {
    double* const of_tensor = expected.data() + 2 * (segment.tensor - first_tensor);
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const double weight = buffers.weights.updated.at(0, i);
      Columns<double> columns{buffers.moments[0]->at(0, i), buffers.moments[1]->at(0, i)};
      const double gradient = buffers.gradients.at(0, i) * static_cast<double>(state.gradient_scale);
      const double decay = segment.decay != 0 ? update.weight_decay : 0;
      of_tensor[0] += weight * weight;
      of_tensor[1] += std::pow(measured(update, gradient, weight, decay, state.updates, columns), 2);
    }
  }
  trial.run(TensorNorms<Op>{.update = update, .first_tensor = first_tensor, .sums = sums.matrix()});
  for (int64_t tensor = 0; tensor < num_tensors; ++tensor) {
    // Sums of weights round in f64 only; measured values round several times in f32 before.
    for (const auto& [i, bound] : {std::pair<int64_t, double>{0, 1e-12}, {1, 2e-6}}) {
      const double exact = expected[static_cast<size_t>(2 * tensor + i)], sum = sums.at(tensor, i);
      trial.expect_true(std::abs(sum - exact) <= bound * exact,
                        fmt::format("sum {} of tensor {} is {}, not {}", i, tensor, sum, exact));
    }
  }
}

template <typename Real>
struct Values {
  std::vector<Real> weight, ema;
  std::array<std::vector<Real>, 2> moments;
};

template <typename Real, typename Op>
Values<Real> reference(const Averaged<Op>& op, const std::vector<UpdateSegment>& segments, const Operand& sums,
                       const Buffers& buffers) {
  const StepState state = state_after(3);
  Values<Real> values{to_real<Real>(buffers.weights.updated.values()), to_real<Real>(buffers.weights.ema.values()), {}};
  for (size_t i = 0; i < 2; ++i) values.moments[i] = to_real<Real>(buffers.moments[i]->values());
  const Real share =
      (1 - static_cast<Real>(op.ema)) / (1 - std::pow(static_cast<Real>(op.ema), static_cast<Real>(state.updates)));
  for (const UpdateSegment& segment : segments) {
    const Real decay = segment.decay != 0 ? static_cast<Real>(op.weight_decay) : Real{0};
    const auto norm = [&](int64_t i) { return static_cast<Real>(std::sqrt(sums.at(segment.tensor, i))); };
    Real rate = static_cast<Real>(state.learning_rate) * static_cast<Real>(segment.rate_factor);
    if (segment.decay != 0 && norm(0) > 0 && norm(1) > 0)
      rate *= trust(static_cast<const Op&>(op), norm(0), norm(1), decay);
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const Real gradient = static_cast<Real>(buffers.gradients.at(0, i)) * static_cast<Real>(state.gradient_scale);
      Columns<Real> columns{values.moments[0][at], values.moments[1][at]};
      values.weight[at] =
          updated(static_cast<const Op&>(op), gradient, values.weight[at], rate, decay, state.updates, columns);
      for (size_t c = 0; c < Op::num_columns; ++c) values.moments[c][at] = columns[c];
      values.ema[at] = share * values.weight[at] + (1 - share) * values.ema[at];
    }
  }
  return values;
}

// `op` holds the constants of Tested, which is Averaged<Op> or Op.
template <typename Tested, typename Op>
void check_update(Trial& trial, Averaged<Op> op, int64_t size, Writes writes, DType weights_dtype, bool skip) {
  const Buffers buffers = add_operands(trial, op, size, writes, weights_dtype, skip);
  op.columns[Op::num_columns] = buffers.weights.ema.matrix();
  // One norm of tensor 8 is zero.
  std::vector<double> squares(2 * (first_tensor + num_tensors));
  for (size_t i = 0; i < squares.size(); ++i) squares[i] = i == 16 ? 0 : 0.5 + static_cast<double>(i * i % 7);
  const Operand& sums = trial.input(DType::f64, first_tensor + num_tensors, 2, squares);
  op.sums = sums.matrix();

  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments_here(size);
  const auto expected = reference<double>(op, changed, sums, buffers);
  const auto plain = reference<float>(op, changed, sums, buffers);
  trial.run(static_cast<const Tested&>(op));
  // The reference also has the elements between segments, which must not change.
  for (size_t c = 0; c < Op::num_columns; ++c)
    trial.expect_close("moment", *buffers.moments[c], expected.moments[c], to_double(plain.moments[c]), 3, 0x1p-24);
  if (std::is_same_v<Tested, Averaged<Op>>) {
    buffers.weights.expect_average(expected.ema, to_double(plain.ema));
  } else {
    buffers.weights.expect_no_average();
  }
  buffers.weights.expect(changed, expected.weight, to_double(plain.weight));
}

LambEma lamb() {
  LambEma op{};
  op.beta1 = 0.9;
  op.beta2 = 0.97;
  op.eps = 1e-4;
  op.weight_decay = 0.1;
  op.ema = 0.8;
  return op;
}

LarsEma lars() {
  LarsEma op{};
  op.momentum = 0.8;
  op.trust = 0.02;
  op.weight_decay = 0.1;
  op.ema = 0.8;
  return op;
}

// Checks that a rank without a part of a unit gets zeros.
void check_nothing(Trial& trial) {
  Lars update = lars();
  const Matrix nothing(nullptr, DType::f32, 1, 0);
  update.state = Trial::pointer<const StepState>(trial.in_out_value(state_after(3)));
  update.gradients = update.master = update.columns[0] = nothing;
  Operand& sums = trial.output(DType::f64, 3, 2);
  trial.run(LarsNorms{.update = update, .first_tensor = 0, .sums = sums.matrix()});
  trial.expect_equal("sums", sums, std::vector<double>(6));
}

void check_rejections(Trial& trial) {
  Lamb update = lamb();
  add_operands(trial, update, 100, Writes::masters, DType::bf16, false);
  const Operand& pairs = trial.input(DType::f64, 3, 2, 1, 1);
  LambNorms norms{.update = update, .first_tensor = 0, .sums = pairs.matrix()};
  trial.expect_rejected(norms, "pairs with a gap between them");
  norms.sums = trial.input(DType::f64, 3, 3).matrix();
  trial.expect_rejected(norms, "three sums for each tensor");
  trial.expect_rejected(update, "no sums");
}

template <typename Op>
void time_update(Trial& trial, const Op& constants) {
  Op op = bench_operands(trial, constants);
  op.weights = trial.output(DType::bf16, 1, bench_elements).matrix();
  op.sums = trial.input(DType::f64, 1, 2).matrix();
  trial.time(op);
}

template <typename Op>
void time_sums(Trial& trial, const Op& constants) {
  trial.time(TensorNorms<Op>{bench_operands(trial, constants), 0, trial.output(DType::f64, 1, 2).matrix()});
}

template <typename Op>
void add_cases(Suite& suite, const Averaged<Op>& op) {
  const auto add = [&](int64_t size, Writes writes, DType dtype, const std::string& name, bool skip = false) {
    suite.add<Op>(name, [=](Trial& t) { check_update<Op>(t, op, size, writes, dtype, skip); });
    suite.add<Averaged<Op>>(name, [=](Trial& t) { check_update<Averaged<Op>>(t, op, size, writes, dtype, skip); });
  };
  for (const int64_t size : {1000, 100003}) {
    const std::string name = fmt::format("segment of {}", size);
    add(size, Writes::masters, DType::f32, name);
    add(size, Writes::masters_and_weights, DType::bf16, name + ", bf16 weights");
    add(size, Writes::weights, DType::bf16, name + ", stochastic rounding");
    suite.add<TensorNorms<Op>>(name, [=](Trial& t) { check_sums<Op>(t, op, size, Writes::masters, false); });
    suite.add<TensorNorms<Op>>(name + ", bf16 weights",
                               [=](Trial& t) { check_sums<Op>(t, op, size, Writes::weights, false); });
  }
  add(1000, Writes::masters_and_weights, DType::f16, "segment of 1000, f16 weights");
  add(100, Writes::masters_and_weights, DType::bf16, "skipped", true);
  add(100, Writes::weights, DType::bf16, "skipped, stochastic rounding", true);
  suite.add<TensorNorms<Op>>("skipped", [=](Trial& t) { check_sums<Op>(t, op, 100, Writes::masters, true); });
  const std::string bench = "40 M elements, bf16 weights";
  suite.add_bench<Op>(bench, [=](Trial& t) { time_update<Op>(t, op); });
  suite.add_bench<Averaged<Op>>(bench, [=](Trial& t) { time_update(t, op); });
  suite.add_bench<TensorNorms<Op>>("40 M elements", [=](Trial& t) { time_sums<Op>(t, op); });
}

void add_lamb_lars_cases(Suite& suite) {
  add_cases<Lamb>(suite, lamb());
  add_cases<Lars>(suite, lars());
  suite.add<LarsNorms>("nothing", check_nothing);
  suite.add<LambNorms>("rejections", check_rejections);
}

const Registration lamb_lars(add_lamb_lars_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_lamb_lars
