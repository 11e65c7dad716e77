// The updates of 0/1 Adam.
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <utility>
#include <vector>

#include "reference.h"
#include "update_writes.h"

namespace gptrain::ops_test::cases_zero_one_adam {
namespace {

ZeroOneAdam constants(ZeroOneUpdate update) {
  ZeroOneAdam op{};
  op.beta1 = 0.9;
  op.beta2 = 0.97;
  op.eps = 1e-8;
  op.weight_decay = 0.1;
  op.update = update;
  op.share = 0.25;
  return op;
}

template <typename Real>
struct Element {
  Real w, m, v, anchor;
};

template <typename Real>
Element<Real> updated(const ZeroOneAdam& op, const UpdateSegment& segment, const StepState& state, Real gradient,
                      Element<Real> e) {
  const auto base = static_cast<Real>(state.learning_rate), lr = base * static_cast<Real>(segment.rate_factor);
  const Real decay = segment.decay != 0 ? base * static_cast<Real>(op.weight_decay) : Real{0};
  const auto beta1 = static_cast<Real>(op.beta1), beta2 = static_cast<Real>(op.beta2);
  const Real root = std::sqrt(e.v) + static_cast<Real>(op.eps);
  switch (op.update) {
    case ZeroOneUpdate::difference:
      e.m = e.v == 0 ? 0 : static_cast<Real>(op.share) * (e.anchor - e.w) * root;
      return e;
    case ZeroOneUpdate::exchange:
      e.w = e.v == 0 ? e.anchor : e.anchor - e.m / root;
      e.m = e.v == 0 ? 0 : e.m / lr;
      e.anchor = e.w;
      return e;
    default:
      break;
  }
  const Real g = gradient * static_cast<Real>(state.gradient_scale);
  e.m = beta1 * e.m + (1 - beta1) * g;
  if (op.update == ZeroOneUpdate::variance) e.v = beta2 * e.v + (1 - beta2) * g * g;
  const Real step = e.v == 0 ? 0 : e.m / (std::sqrt(e.v) + static_cast<Real>(op.eps));
  const Real decayed = decay * (op.update == ZeroOneUpdate::local ? e.anchor : e.w);
  e.w -= lr * step + decayed;
  if (op.update == ZeroOneUpdate::local) e.anchor -= decayed;
  return e;
}

// Expected values of all operands.
struct Expected {
  std::vector<double> w, m, v, anchor;
};

void check(Trial& trial, ZeroOneUpdate update, int64_t size, bool skip) {
  ZeroOneAdam op = constants(update);
  const std::vector<UpdateSegment> segments = segments_of(size);
  const int64_t elements = elements_of(size);
  const StepState state = state_after(3, skip);
  std::vector<double> squares;
  for (int64_t i = 0; i < elements; ++i) squares.push_back(i % 5 == 0 ? 0 : std::pow(trial.random.normal(), 2) + 0.01);
  const Operand& gradient = trial.input(DType::f32, 1, elements);
  Operand& m = trial.in_out(DType::f32, 1, elements, 0.1);
  Operand& v = trial.in_out(DType::f32, 1, elements);
  Operand& anchor = trial.in_out(DType::f32, 1, elements);
  trial.run(Cast{.from = trial.input(DType::f32, 1, elements, squares).matrix(), .to = v.matrix()});
  const UpdatedWeights weights(trial, elements, Writes::masters_and_weights, DType::bf16);
  set_segments(trial, op, segments, state);
  op.gradients = gradient.matrix();
  op.columns = {m.matrix(), v.matrix(), anchor.matrix()};
  weights.set_operands(op);
  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  const auto expect = [&]<typename Real>(Real) {
    Expected all{.w = weights.updated.values(), .m = m.values(), .v = v.values(), .anchor = anchor.values()};
    for (const UpdateSegment& segment : changed) {
      for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
        const auto at = static_cast<size_t>(i);
        const Element<Real> before{.w = static_cast<Real>(all.w[at]),
                                   .m = static_cast<Real>(all.m[at]),
                                   .v = static_cast<Real>(all.v[at]),
                                   .anchor = static_cast<Real>(all.anchor[at])};
        const Element<Real> after = updated(op, segment, state, static_cast<Real>(gradient.at(0, i)), before);
        all.w[at] = static_cast<double>(after.w);
        all.m[at] = static_cast<double>(after.m);
        all.v[at] = static_cast<double>(after.v);
        all.anchor[at] = static_cast<double>(after.anchor);
      }
    }
    return all;
  };
  const auto expected = expect(double{});
  const auto plain = expect(float{});
  trial.run(op);
  trial.expect_close("moment", m, expected.m, plain.m);
  trial.expect_close("variance", v, expected.v, plain.v);
  trial.expect_close("anchor", anchor, expected.anchor, plain.anchor);
  weights.expect_no_average();
  weights.expect(changed, expected.w, plain.w);
}

constexpr std::array updates = {std::pair{ZeroOneUpdate::variance, "variance"},
                                std::pair{ZeroOneUpdate::moment, "moment"}, std::pair{ZeroOneUpdate::local, "local"},
                                std::pair{ZeroOneUpdate::difference, "difference"},
                                std::pair{ZeroOneUpdate::exchange, "exchange"}};

void add_cases(Suite& suite) {
  for (const auto& [update, name] : updates) {
    for (const int64_t size : {1000, 100003})
      suite.add<ZeroOneAdam>(fmt::format("{}, segment of {}", name, size),
                             [update = update, size](Trial& t) { check(t, update, size, false); });
    suite.add<ZeroOneAdam>(fmt::format("{}, skipped", name),
                           [update = update](Trial& t) { check(t, update, 100, true); });
  }
  suite.add_bench<ZeroOneAdam>("40 M elements, bf16 weights", [](Trial& t) {
    ZeroOneAdam op = bench_operands(t, constants(ZeroOneUpdate::local));
    op.weights = t.output(DType::bf16, 1, bench_elements).matrix();
    t.time(op);
  });
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_zero_one_adam
