// The updates of optimizers with one moment: SGD with momentum, and Lion.
#include <cmath>
#include <fmt/format.h>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test {
namespace {

// Segments with gaps between them, one of a learning rate of its own, and one that does not decay.
std::vector<UpdateSegment> segments_of(int64_t size) {
  return {{0, 1, 1}, {64, 13, 0}, {128, size, 1}, {size + 192, 31, 1, 0.25F}};
}

template <typename Real>
struct Values {
  std::vector<Real> master, moment;
};

// One element's new weight; `moment` becomes that after the update. `rate` is the segment's.
template <typename Real>
Real updated(const Sgd& op, Real gradient, Real weight, Real rate, Real decay, Real& moment) {
  const auto momentum = static_cast<Real>(op.momentum);
  moment = momentum * moment + gradient;
  return weight - rate * ((op.nesterov ? gradient + momentum * moment : moment) + decay * weight);
}

template <typename Real>
Real updated(const Lion& op, Real gradient, Real weight, Real rate, Real decay, Real& moment) {
  const Real direction = static_cast<Real>(op.beta1) * moment + static_cast<Real>(1 - op.beta1) * gradient;
  moment = static_cast<Real>(op.beta2) * moment + static_cast<Real>(1 - op.beta2) * gradient;
  const Real sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
  return weight - rate * (sign + decay * weight);
}

template <typename Real, typename Op>
Values<Real> reference(const Op& op, const std::vector<UpdateSegment>& segments, const StepState& state,
                       const Operand& gradients, const Operand& master, const Operand& moment) {
  Values<Real> values{to_real<Real>(master.values()), to_real<Real>(moment.values())};
  for (const UpdateSegment& segment : segments) {
    const Real rate = static_cast<Real>(state.learning_rate) * static_cast<Real>(segment.rate_factor);
    const Real decay = segment.decay != 0 ? static_cast<Real>(op.weight_decay) : Real{0};
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const Real gradient = static_cast<Real>(gradients.at(0, i)) * static_cast<Real>(state.gradient_scale);
      values.master[at] = updated<Real>(op, gradient, values.master[at], rate, decay, values.moment[at]);
    }
  }
  return values;
}

template <typename Op>
void check(Trial& trial, Op op, int64_t size, DType weights_dtype, bool skip) {
  const std::vector<UpdateSegment> segments = segments_of(size);
  const int64_t elements = size + 256;
  StepState state;
  state.learning_rate = 0.01F;
  state.gradient_scale = 0.3F;
  state.skip = skip ? 1 : 0;
  state.updates = 3;
  const Operand& gradients = trial.input(DType::f32, 1, elements);
  Operand& master = trial.in_out(DType::f32, 1, elements);
  Operand& moment = trial.in_out(DType::f32, 1, elements, 0.1);
  Operand& weights = trial.in_out(weights_dtype, 1, elements);
  op.weight_decay = 0.1;
  op.segments = Trial::pointer<const UpdateSegment>(trial.input_array(segments));
  op.num_segments = static_cast<int64_t>(segments.size());
  op.state = Trial::pointer<const StepState>(trial.in_out_value(state));
  op.gradients = gradients.matrix();
  op.master = master.matrix();
  op.columns[0] = moment.matrix();
  op.weights = weights.matrix();

  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  const auto expected = reference<double>(op, changed, state, gradients, master, moment);
  const auto plain = reference<float>(op, changed, state, gradients, master, moment);
  std::vector<double> rounded_weights = weights.values();
  trial.run(op);
  // The reference also holds what lies between segments, which must not change.
  trial.expect_close("master", master, expected.master, to_double(plain.master), 3, 0x1p-24);
  trial.expect_close("moment", moment, expected.moment, to_double(plain.moment), 3, 0x1p-24);
  for (const UpdateSegment& segment : changed) {
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i)
      rounded_weights[static_cast<size_t>(i)] = rounded(master.at(0, i), weights_dtype);
  }
  trial.expect_equal("weights", weights, rounded_weights);
}

Sgd sgd(bool nesterov) {
  Sgd op{};
  op.momentum = 0.8;
  op.nesterov = nesterov;
  return op;
}

Lion lion() {
  Lion op{};
  op.beta1 = 0.9;
  op.beta2 = 0.97;
  return op;
}

// Where the moment and the gradient are zero, the weight only decays.
void check_zero_direction(Trial& trial) {
  const std::vector<UpdateSegment> segments{{0, 2, 0}};
  StepState state;
  state.learning_rate = 0.5F;
  state.gradient_scale = 1;
  Operand& master = trial.in_out(DType::f32, 1, 2);
  const std::vector<double> before = master.values();
  Lion op = lion();
  op.segments = Trial::pointer<const UpdateSegment>(trial.input_array(segments));
  op.num_segments = 1;
  op.state = Trial::pointer<const StepState>(trial.in_out_value(state));
  op.gradients = trial.input(DType::f32, 1, 2, 0).matrix();
  op.master = master.matrix();
  op.columns[0] = trial.in_out(DType::f32, 1, 2, 0).matrix();
  trial.run(op);
  trial.expect_equal("master", master, before);
}

template <typename Op>
void time_update(Trial& trial, Op op) {
  constexpr int64_t elements = 40'000'000;
  const std::vector<UpdateSegment> segments{{0, elements, 1}};
  op.segments = Trial::pointer<const UpdateSegment>(trial.input_array(segments));
  op.num_segments = 1;
  op.state = Trial::pointer<const StepState>(trial.in_out_value(StepState{}));
  op.gradients = trial.input(DType::f32, 1, elements, 0).matrix();
  op.master = trial.input(DType::f32, 1, elements, 0).matrix();
  op.columns[0] = trial.input(DType::f32, 1, elements, 0).matrix();
  op.weights = trial.input(DType::bf16, 1, elements, 0).matrix();
  trial.time(op);
}

void add_sgd_lion_cases(Suite& suite) {
  for (const int64_t size : {1000, 100003}) {
    const std::string name = fmt::format("segment of {}", size);
    suite.add<Sgd>(name, [=](Trial& t) { check(t, sgd(false), size, DType::bf16, false); });
    suite.add<Lion>(name, [=](Trial& t) { check(t, lion(), size, DType::bf16, false); });
  }
  suite.add<Sgd>("Nesterov", [](Trial& t) { check(t, sgd(true), 1000, DType::f16, false); });
  suite.add<Sgd>("skipped", [](Trial& t) { check(t, sgd(false), 100, DType::bf16, true); });
  suite.add<Lion>("skipped", [](Trial& t) { check(t, lion(), 100, DType::bf16, true); });
  suite.add<Lion>("no direction", check_zero_direction);
  suite.add_bench<Sgd>("40 M elements", [](Trial& t) { time_update(t, sgd(false)); });
  suite.add_bench<Lion>("40 M elements", [](Trial& t) { time_update(t, lion()); });
}

const Registration sgd_lion(add_sgd_lion_cases);

}  // namespace
}  // namespace gptrain::ops_test
