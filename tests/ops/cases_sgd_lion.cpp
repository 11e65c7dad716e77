// Updates with one moment, SGD with momentum and Lion, with and without an average of the weights.
#include <cmath>
#include <fmt/format.h>
#include <type_traits>

#include "reference.h"
#include "update_writes.h"

namespace gptrain::ops_test::cases_sgd_lion {
namespace {

template <typename Real>
struct Values {
  std::vector<Real> weight, moment, ema;
};

// Returns one element's new weight and updates `moment`. `rate` is the segment's, `decay` a share of the weight.
template <typename Real>
Real updated(const Sgd& op, Real gradient, Real weight, Real rate, Real decay, Real& moment) {
  const auto momentum = static_cast<Real>(op.momentum);
  moment = momentum * moment + gradient;
  return weight - rate * (op.nesterov ? gradient + momentum * moment : moment) - decay * weight;
}

template <typename Real>
Real updated(const Lion& op, Real gradient, Real weight, Real rate, Real decay, Real& moment) {
  const Real direction = static_cast<Real>(op.beta1) * moment + static_cast<Real>(1 - op.beta1) * gradient;
  moment = static_cast<Real>(op.beta2) * moment + static_cast<Real>(1 - op.beta2) * gradient;
  const Real sign = direction > 0 ? Real{1} : direction < 0 ? Real{-1} : Real{0};
  return weight - rate * sign - decay * weight;
}

template <typename Real, typename Op>
Values<Real> reference(const Averaged<Op>& op, const std::vector<UpdateSegment>& segments, const StepState& state,
                       const Operand& gradients, const Operand& moment, const UpdatedWeights& weights) {
  Values<Real> values{to_real<Real>(weights.updated.values()), to_real<Real>(moment.values()),
                      to_real<Real>(weights.ema.values())};
  const Real share =
      (1 - static_cast<Real>(op.ema)) / (1 - std::pow(static_cast<Real>(op.ema), static_cast<Real>(state.updates)));
  for (const UpdateSegment& segment : segments) {
    const auto lr = static_cast<Real>(state.learning_rate);
    const Real rate = lr * static_cast<Real>(segment.rate_factor);
    const Real decay = segment.decay != 0 ? lr * static_cast<Real>(op.weight_decay) : Real{0};
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const Real gradient = static_cast<Real>(gradients.at(0, i)) * static_cast<Real>(state.gradient_scale);
      values.weight[at] =
          updated<Real>(static_cast<const Op&>(op), gradient, values.weight[at], rate, decay, values.moment[at]);
      values.ema[at] = share * values.weight[at] + (1 - share) * values.ema[at];
    }
  }
  return values;
}

// `op` holds the constants of Tested, which is Averaged<Op> or Op.
template <typename Tested, typename Op>
void check(Trial& trial, Averaged<Op> op, int64_t size, Writes writes, DType weights_dtype, bool skip) {
  const std::vector<UpdateSegment> segments = segments_of(size);
  const int64_t elements = elements_of(size);
  const StepState state = state_after(3, skip);
  const Operand& gradients = trial.input(DType::f32, 1, elements);
  Operand& moment = trial.in_out(DType::f32, 1, elements, 0.1);
  const UpdatedWeights weights(trial, elements, writes, weights_dtype);
  set_segments(trial, op, segments, state);
  op.gradients = gradients.matrix();
  op.columns = {moment.matrix(), weights.ema.matrix()};
  weights.set_operands(op);

  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  const auto expected = reference<double>(op, changed, state, gradients, moment, weights);
  const auto plain = reference<float>(op, changed, state, gradients, moment, weights);
  trial.run(static_cast<const Tested&>(op));
  // The reference also has the elements between segments, which must not change.
  trial.expect_close("moment", moment, expected.moment, to_double(plain.moment), 3, 0x1p-24);
  if (std::is_same_v<Tested, Averaged<Op>>) {
    weights.expect_average(expected.ema, to_double(plain.ema));
  } else {
    weights.expect_no_average();
  }
  weights.expect(changed, expected.weight, to_double(plain.weight));
}

SgdEma sgd(bool nesterov) {
  SgdEma op{};
  op.weight_decay = 0.1;
  op.ema = 0.8;
  op.momentum = 0.8;
  op.nesterov = nesterov;
  return op;
}

LionEma lion() {
  LionEma op{};
  op.weight_decay = 0.1;
  op.ema = 0.8;
  op.beta1 = 0.9;
  op.beta2 = 0.97;
  return op;
}

// Checks that Lion's step is zero if moment and gradient are zero.
void check_zero_direction(Trial& trial) {
  StepState state;
  state.learning_rate = 0.5F;
  state.gradient_scale = 1;
  Operand& master = trial.in_out(DType::f32, 1, 2);
  const std::vector<double> before = master.values();
  Lion op = lion();
  set_segments(trial, op, {{0, 2, 0}}, state);
  op.gradients = trial.input(DType::f32, 1, 2, 0).matrix();
  op.master = master.matrix();
  op.columns[0] = trial.in_out(DType::f32, 1, 2, 0).matrix();
  trial.run(op);
  trial.expect_equal("master", master, before);
}

template <typename Op>
void time_update(Trial& trial, const Op& constants) {
  Op op = bench_operands(trial, constants);
  op.weights = trial.output(DType::bf16, 1, bench_elements).matrix();
  trial.time(op);
}

template <typename Tested, typename Op>
void add_cases(Suite& suite, const Averaged<Op>& op, const std::string& with) {
  const auto add = [&](int64_t size, Writes writes, DType dtype, const std::string& name, bool skip = false) {
    suite.add<Tested>(name + with, [=](Trial& t) { check<Tested>(t, op, size, writes, dtype, skip); });
  };
  for (const int64_t size : {1000, 100003}) {
    const std::string name = fmt::format("segment of {}", size);
    add(size, Writes::masters, DType::f32, name);
    add(size, Writes::masters_and_weights, DType::bf16, name + ", bf16 weights");
    add(size, Writes::weights, DType::bf16, name + ", stochastic rounding");
  }
  add(1000, Writes::masters_and_weights, DType::f16, "segment of 1000, f16 weights");
  add(100, Writes::masters_and_weights, DType::bf16, "skipped", true);
  add(100, Writes::weights, DType::bf16, "skipped, stochastic rounding", true);
}

void add_sgd_lion_cases(Suite& suite) {
  add_cases<Sgd>(suite, sgd(false), "");
  add_cases<Sgd>(suite, sgd(true), ", Nesterov");
  add_cases<SgdEma>(suite, sgd(true), ", Nesterov");
  add_cases<Lion>(suite, lion(), "");
  add_cases<LionEma>(suite, lion(), "");
  suite.add<Lion>("no direction", check_zero_direction);
  const std::string bench = "40 M elements, bf16 weights";
  suite.add_bench<Sgd>(bench, [](Trial& t) { time_update<Sgd>(t, sgd(false)); });
  suite.add_bench<SgdEma>(bench, [](Trial& t) { time_update(t, sgd(false)); });
  suite.add_bench<Lion>(bench, [](Trial& t) { time_update<Lion>(t, lion()); });
  suite.add_bench<LionEma>(bench, [](Trial& t) { time_update(t, lion()); });
}

const Registration sgd_lion(add_sgd_lion_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_sgd_lion
