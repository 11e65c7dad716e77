// The two updates of Muon, and the weighted sums of its orthogonalisation.
#include <cmath>
#include <fmt/format.h>
#include <type_traits>

#include "reference.h"
#include "update_writes.h"

namespace gptrain::ops_test::cases_muon {
namespace {

template <typename Real>
struct MomentumValues {
  std::vector<Real> direction, moment;
};

template <typename Real>
MomentumValues<Real> momentum_reference(const MuonMomentum& op, const std::vector<UpdateSegment>& segments,
                                        const StepState& state, const Operand& gradients, const Operand& moment) {
  MomentumValues<Real> values{to_real<Real>(gradients.values()), to_real<Real>(moment.values())};
  const auto momentum = static_cast<Real>(op.momentum);
  for (const UpdateSegment& segment : segments) {
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const Real gradient = values.direction[at] * static_cast<Real>(state.gradient_scale);
      Real& m = values.moment[at];
      m += static_cast<Real>(1 - op.momentum) * (gradient - m);
      values.direction[at] = op.nesterov ? gradient + momentum * (m - gradient) : m;
    }
  }
  return values;
}

// Checks the momentum; the direction replaces the gradient.
void check_momentum(Trial& trial, int64_t size, bool nesterov, bool skip) {
  const std::vector<UpdateSegment> segments = segments_of(size);
  const int64_t elements = elements_of(size);
  const StepState state = state_after(3, skip);
  Operand& gradients = trial.in_out(DType::f32, 1, elements);
  Operand& moment = trial.in_out(DType::f32, 1, elements);
  MuonMomentum op;
  op.momentum = 0.9;
  op.nesterov = nesterov;
  set_segments(trial, op, segments, state);
  op.gradients = op.master = gradients.matrix();
  op.columns = {moment.matrix()};
  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  const auto expected = momentum_reference<double>(op, changed, state, gradients, moment);
  const auto plain = momentum_reference<float>(op, changed, state, gradients, moment);
  trial.run(op);
  trial.expect_close("direction", gradients, expected.direction, to_double(plain.direction), 3, 0x1p-24);
  trial.expect_close("moment", moment, expected.moment, to_double(plain.moment), 3, 0x1p-24);
}

template <typename Real>
struct StepValues {
  std::vector<Real> weight, ema;
};

template <typename Real>
StepValues<Real> step_reference(const MuonEma& op, const std::vector<UpdateSegment>& segments, const StepState& state,
                                const Operand& orthogonal, const UpdatedWeights& weights) {
  StepValues<Real> values{to_real<Real>(weights.updated.values()), to_real<Real>(weights.ema.values())};
  const Real share =
      (1 - static_cast<Real>(op.ema)) / (1 - std::pow(static_cast<Real>(op.ema), static_cast<Real>(state.updates)));
  for (const UpdateSegment& segment : segments) {
    const auto lr = static_cast<Real>(state.learning_rate);
    const Real rate = lr * static_cast<Real>(segment.rate_factor);
    const Real decay = segment.decay != 0 ? lr * static_cast<Real>(op.weight_decay) : Real{0};
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const auto at = static_cast<size_t>(i);
      Real& w = values.weight[at];
      w -= rate * static_cast<Real>(orthogonal.at(0, i)) + decay * w;
      values.ema[at] += share * (w - values.ema[at]);
    }
  }
  return values;
}

// Checks the step; an orthogonalised direction is not divided by the gradients' scale. Tested is Muon or MuonEma.
template <typename Tested>
void check_step(Trial& trial, int64_t size, Writes writes, bool skip) {
  const std::vector<UpdateSegment> segments = segments_of(size);
  const int64_t elements = elements_of(size);
  const StepState state = state_after(3, skip);
  const Operand& orthogonal = trial.input(DType::f32, 1, elements);
  const UpdatedWeights weights(trial, elements, writes);
  MuonEma op{};
  op.weight_decay = 0.1;
  op.ema = 0.8;
  set_segments(trial, op, segments, state);
  op.gradients = orthogonal.matrix();
  weights.set_operands(op);
  constexpr bool averages = std::is_same_v<Tested, MuonEma>;
  if (averages) op.columns = {weights.ema.matrix()};
  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  const auto expected = step_reference<double>(op, changed, state, orthogonal, weights);
  const auto plain = step_reference<float>(op, changed, state, orthogonal, weights);
  trial.run(static_cast<const Tested&>(op));
  if (averages) {
    weights.expect_average(expected.ema, to_double(plain.ema));
  } else {
    weights.expect_no_average();
  }
  weights.expect(changed, expected.weight, to_double(plain.weight));
}

struct SumCase {
  int64_t rows, cols;
  DType from, to;
  bool with_b = false, with_norm = false, in_place = false;
};

template <typename Real>
std::vector<double> sum_reference(const WeightedSum& op, const std::vector<double>& a, const std::vector<double>& b,
                                  double divisor) {
  std::vector<double> sum;
  for (size_t i = 0; i < a.size(); ++i) {
    const Real of_b = op.b.given() ? static_cast<Real>(op.b_factor) * static_cast<Real>(b[i]) : Real{0};
    sum.push_back(static_cast<double>(static_cast<Real>(op.a_factor / divisor) * static_cast<Real>(a[i]) + of_b));
  }
  return sum;
}

void check_sum(Trial& trial, const SumCase& sum, double squared_norm, double divisor) {
  Operand& a = trial.in_out(sum.from, sum.rows, sum.cols, 1, 3);
  const Operand& b = trial.input(sum.from, sum.rows, sum.cols, 1, 5);
  Operand& other = trial.output(sum.to, sum.rows, sum.cols, 1);
  Operand& to = sum.in_place ? a : other;
  const std::vector<double> before = a.values();
  WeightedSum op{.a = a.matrix(), .a_factor = 3.4445, .b = {}, .b_factor = -2.5, .to = to.matrix()};
  if (sum.with_b) op.b = b.matrix();
  if (sum.with_norm) {
    op.squared_norm =
        Matrix(Trial::pointer<double>(trial.input_array(std::vector<double>{squared_norm})), DType::f64, 1, 1);
    op.least_norm = 0.5;
  }
  trial.run(op);
  const std::vector<double> expected = sum_reference<double>(op, before, b.values(), divisor);
  const std::vector<double> plain = rounded(sum_reference<float>(op, before, b.values(), divisor), sum.to);
  trial.expect_close("to", to, expected, plain, 3, 0x1p-23);
  if (!sum.in_place) trial.expect_equal("a", a, before);
}

// Checks that without b infinities and NaNs of a remain, and no others appear.
void check_sum_of_infinities(Trial& trial) {
  const Operand& a = trial.input(DType::f32, 1, 4, std::vector<double>{1, INFINITY, -INFINITY, 2});
  Operand& to = trial.output(DType::f32, 1, 4);
  trial.run(WeightedSum{.a = a.matrix(), .a_factor = 2, .b = {}, .b_factor = 0, .to = to.matrix()});
  trial.expect_equal("to", to, {2, INFINITY, -INFINITY, 4});
}

// Two groups, each with two query heads and one head of keys. The scores of the second group begin at index 3. Between
// the weights of two heads lie `gap` elements that belong to no head.
void check_clip(Trial& trial, DType dtype, bool skip) {
  constexpr int64_t size = 20'000, gap = 7;  // a head is longer than a chunk that threads share
  constexpr double threshold = 10;
  const std::vector<double> scores = {40, 20, -1, 5, 160};
  struct Head {
    int64_t first, head;
    double factor;
  };
  // The keys of the first group are scaled by the root of 10 / 20; those of the second by nothing.
  const std::vector<Head> heads = {{0, 0, 0.25 / std::sqrt(0.5)},
                                   {0, 1, 0.5 / std::sqrt(0.5)},
                                   {0, -1, std::sqrt(0.5)},
                                   {3, 3, 1},
                                   {3, 4, 0.0625},
                                   {3, -1, 1}};
  std::vector<HeadSegment> segments;
  for (const Head& head : heads)
    segments.push_back({.offset = std::ssize(segments) * (size + gap),
                        .count = size,
                        .first_head = head.first,
                        .num_heads = 2,
                        .head = head.head});
  const int64_t elements = std::ssize(heads) * (size + gap);
  Operand& master = trial.in_out(DType::f32, 1, elements);
  Operand* const weights = dtype == DType::f32 ? nullptr : &trial.in_out(dtype, 1, elements);
  std::vector<double> expected = master.values(), narrow = weights != nullptr ? weights->values() : expected;
  for (size_t i = 0; i < heads.size() && !skip; ++i) {
    for (int64_t at = segments[i].offset; at < segments[i].offset + size && heads[i].factor != 1; ++at) {
      const auto element = static_cast<size_t>(at);
      expected[element] *= heads[i].factor;
      narrow[element] = expected[element];
    }
  }
  ClipHeads op{};
  set_segments(trial, op, segments, state_after(3, skip));
  op.threshold = threshold;
  op.largest = trial.input(DType::f32, 1, std::ssize(scores), scores).matrix();
  op.master = master.matrix();
  if (weights != nullptr) op.weights = weights->matrix();
  trial.run(op);
  trial.expect_near("master", master, expected, 0x1p-20);
  if (weights != nullptr) trial.expect_near("weights", *weights, narrow, dtype == DType::bf16 ? 0x1p-6 : 0x1p-9);
}

// 16 heads of queries and 16 of keys, each of which is scaled.
void time_clip(Trial& trial) {
  constexpr int64_t heads = 16, size = 64 * 4096;
  std::vector<HeadSegment> segments;
  for (int64_t i = 0; i < 2 * heads; ++i)
    segments.push_back(
        {.offset = i * size, .count = size, .first_head = i % heads, .num_heads = 1, .head = i < heads ? i : -1});
  ClipHeads op{};
  set_segments(trial, op, segments, state_after(3, false));
  op.threshold = 10;
  op.largest = trial.input(DType::f32, 1, heads, std::vector<double>(heads, 10.001)).matrix();
  op.master = trial.in_out(DType::f32, 1, 2 * heads * size).matrix();
  op.weights = trial.in_out(DType::bf16, 1, 2 * heads * size).matrix();
  trial.time(op);
}

void add_sum_cases(Suite& suite) {
  int64_t index = 0;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {7, 13}, {33, 64}, {130, 257}, {1, 40000}}) {
    for (const DType from : compute_dtypes) {
      for (const DType to : {DType::f32, from}) {
        if (is_left_out(from, index++) || (to == from && from == DType::f32 && index % 2 == 0)) continue;
        for (const bool with_b : {false, true}) {
          const bool in_place = to == from && with_b;
          suite.add<WeightedSum>(
              fmt::format("[{}, {}] {} to {}{}{}", rows, cols, dtype_name(from), dtype_name(to),
                          with_b ? ", of two" : "", in_place ? ", in place" : ""),
              [=](Trial& t) {
                check_sum(t,
                          {.rows = rows, .cols = cols, .from = from, .to = to, .with_b = with_b, .in_place = in_place},
                          0, 1);
              });
        }
      }
    }
    suite.add<WeightedSum>(fmt::format("[{}, {}] f32 to bf16, normalised", rows, cols), [=](Trial& t) {
      check_sum(t, {.rows = rows, .cols = cols, .from = DType::f32, .to = DType::bf16, .with_norm = true}, 9, 3);
    });
  }
  suite.add<WeightedSum>("[7, 13] f32 to f32, of less than the least norm", [](Trial& t) {
    check_sum(t, {.rows = 7, .cols = 13, .from = DType::f32, .to = DType::f32, .with_norm = true}, 0, 0.5);
  });
  suite.add<WeightedSum>("infinities", check_sum_of_infinities);
  suite.add<WeightedSum>("rejections", [](Trial& t) {
    const Matrix a = t.input(DType::f32, 3, 4).matrix(), wide = t.input(DType::f32, 3, 5).matrix();
    const Matrix to = t.output(DType::f32, 3, 4).matrix(), norm = t.input(DType::f64, 1, 1).matrix();
    t.expect_rejected(WeightedSum{.a = a, .a_factor = 1, .b = wide, .b_factor = 1, .to = to}, "b of another shape");
    t.expect_rejected(WeightedSum{.a = wide, .a_factor = 1, .b = {}, .b_factor = 1, .to = to}, "to of another shape");
    t.expect_rejected(WeightedSum{.a = a, .a_factor = 1, .b = {}, .b_factor = 1, .to = to, .squared_norm = norm},
                      "a norm without a least one");
    Matrix narrow = a;
    narrow.dtype = DType::bf16;
    t.expect_rejected(WeightedSum{.a = a, .a_factor = 1, .b = {}, .b_factor = 1, .to = narrow},
                      "an operand's place in another dtype");
  });
  suite.add_bench<WeightedSum>("[4096, 4096] bf16", [](Trial& t) {
    const Matrix a = t.in_out(DType::bf16, 4096, 4096, 0).matrix();
    t.time(
        WeightedSum{.a = a, .a_factor = 2, .b = t.input(DType::bf16, 4096, 4096, 0).matrix(), .b_factor = 1, .to = a});
  });
}

template <typename Tested>
void add_step_cases(Suite& suite) {
  for (const int64_t size : {1000, 100003}) {
    suite.add<Tested>(fmt::format("segment of {}", size),
                      [=](Trial& t) { check_step<Tested>(t, size, Writes::masters, false); });
    suite.add<Tested>(fmt::format("segment of {}, bf16 weights", size),
                      [=](Trial& t) { check_step<Tested>(t, size, Writes::masters_and_weights, false); });
    suite.add<Tested>(fmt::format("segment of {}, stochastic rounding", size),
                      [=](Trial& t) { check_step<Tested>(t, size, Writes::weights, false); });
  }
  suite.add<Tested>("skipped", [](Trial& t) { check_step<Tested>(t, 100, Writes::masters_and_weights, true); });
  suite.add<Tested>("skipped, stochastic rounding",
                    [](Trial& t) { check_step<Tested>(t, 100, Writes::weights, true); });
}

template <typename Op>
void time_update(Trial& trial, const Op& constants, bool in_place) {
  Op op = bench_operands(trial, constants);
  if (in_place) op.gradients = op.master;
  if (!in_place) op.weights = trial.output(DType::bf16, 1, bench_elements).matrix();
  trial.time(op);
}

void add_muon_cases(Suite& suite) {
  for (const bool nesterov : {false, true}) {
    const std::string name = nesterov ? ", Nesterov" : "";
    for (const int64_t size : {1000, 100003})
      suite.add<MuonMomentum>(fmt::format("segment of {}{}", size, name),
                              [=](Trial& t) { check_momentum(t, size, nesterov, false); });
    suite.add<MuonMomentum>("skipped" + name, [=](Trial& t) { check_momentum(t, 100, nesterov, true); });
  }
  for (const DType dtype : compute_dtypes) {
    suite.add<ClipHeads>(std::string(dtype_name(dtype)), [=](Trial& t) { check_clip(t, dtype, false); });
    suite.add<ClipHeads>(fmt::format("skipped {}", dtype_name(dtype)), [=](Trial& t) { check_clip(t, dtype, true); });
  }
  add_step_cases<Muon>(suite);
  add_step_cases<MuonEma>(suite);
  add_sum_cases(suite);
  suite.add_bench<MuonMomentum>("40 M elements", [](Trial& t) { time_update(t, MuonMomentum{}, true); });
  suite.add_bench<Muon>("40 M elements, bf16 weights", [](Trial& t) { time_update(t, Muon{}, false); });
  suite.add_bench<MuonEma>("40 M elements, bf16 weights", [](Trial& t) {
    MuonEma op{};
    op.ema = 0.9;
    time_update(t, op, false);
  });
  suite.add_bench<ClipHeads>("8 M elements, bf16 weights", time_clip);
}

const Registration muon(add_muon_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_muon
