// The update of 1-bit Adam after its variances are frozen.
#include <cmath>
#include <fmt/format.h>

#include "reference.h"
#include "update_writes.h"

namespace gptrain::ops_test::cases_frozen_adam {
namespace {

FrozenAdam constants() {
  FrozenAdam op{};
  op.beta1 = 0.9;
  op.beta2 = 0.97;
  op.eps = 1e-8;
  op.weight_decay = 0.1;
  op.frozen_updates = 2;
  return op;
}

template <typename Real>
std::vector<Real> updated(const FrozenAdam& op, const std::vector<UpdateSegment>& segments, const StepState& state,
                          const Operand& moments, const std::vector<double>& variances, const Operand& weights) {
  std::vector<Real> values = to_real<Real>(weights.values());
  const auto correction1 = static_cast<Real>(1 - std::pow(op.beta1, static_cast<double>(state.updates)));
  const auto correction2 = static_cast<Real>(1 - std::pow(op.beta2, static_cast<double>(op.frozen_updates)));
  for (const UpdateSegment& segment : segments) {
    const auto lr = static_cast<Real>(state.learning_rate);
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const auto v = static_cast<Real>(variances[static_cast<size_t>(i)]);
      const Real m = v == 0 ? Real{0} : static_cast<Real>(moments.at(0, i));
      Real& weight = values[static_cast<size_t>(i)];
      const Real decay = segment.decay != 0 ? lr * static_cast<Real>(op.weight_decay) : Real{0};
      const Real direction = m / correction1 / (std::sqrt(v / correction2) + static_cast<Real>(op.eps));
      weight -= lr * static_cast<Real>(segment.rate_factor) * direction + decay * weight;
    }
  }
  return values;
}

void check(Trial& trial, int64_t size, Writes writes, bool skip) {
  FrozenAdam op = constants();
  const std::vector<UpdateSegment> segments = segments_of(size);
  const int64_t elements = elements_of(size);
  const StepState state = state_after(3, skip);
  std::vector<double> squares;
  for (int64_t i = 0; i < elements; ++i) squares.push_back(i % 5 == 0 ? 0 : std::pow(trial.random.normal(), 2) + 0.01);
  const Operand& next = trial.input(DType::f32, 1, elements);
  Operand& moment = trial.in_out(DType::f32, 1, elements, 0.1);
  Operand& variance = trial.in_out(DType::f32, 1, elements);
  trial.run(Cast{.from = trial.input(DType::f32, 1, elements, squares).matrix(), .to = variance.matrix()});
  const UpdatedWeights weights(trial, elements, writes, DType::bf16);
  set_segments(trial, op, segments, state);
  op.gradients = next.matrix();
  op.columns = {moment.matrix(), variance.matrix(), {}};
  weights.set_operands(op);
  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  std::vector<double> moments = moment.values();
  const std::vector<double> variances = variance.values();
  for (const UpdateSegment& segment : changed)
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i)
      moments[static_cast<size_t>(i)] = variances[static_cast<size_t>(i)] == 0 ? 0 : next.at(0, i);
  const auto expected = updated<double>(op, changed, state, next, variances, weights.updated);
  const auto plain = updated<float>(op, changed, state, next, variances, weights.updated);
  trial.run(op);
  trial.expect_equal("moment", moment, moments);
  trial.expect_equal("variance", variance, variances);
  weights.expect_no_average();
  weights.expect(changed, expected, to_double(plain));
}

void add_cases(Suite& suite) {
  for (const int64_t size : {1000, 100003})
    suite.add<FrozenAdam>(fmt::format("segment of {}", size),
                          [=](Trial& t) { check(t, size, Writes::masters, false); });
  suite.add<FrozenAdam>("bf16 weights", [](Trial& t) { check(t, 1000, Writes::masters_and_weights, false); });
  suite.add<FrozenAdam>("skipped", [](Trial& t) { check(t, 100, Writes::masters_and_weights, true); });
  suite.add_bench<FrozenAdam>("40 M elements, bf16 weights", [](Trial& t) {
    FrozenAdam op = bench_operands(t, constants());
    op.weights = t.output(DType::bf16, 1, bench_elements).matrix();
    t.time(op);
  });
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_frozen_adam
