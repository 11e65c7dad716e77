// AdamW on bf16 weights without master weights: stochastic rounding by the tensor's indices.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_rounding {
namespace {

// Rounds |x|: the bf16 number below it (8 significant bits), plus one unit if adding 16 random bits carries.
double stochastically_rounded(double x, uint32_t random) {
  if (x == 0) return 0;
  const double unit = std::ldexp(1.0, std::ilogb(x) - 7);
  const double below = std::floor(std::abs(x) / unit);
  const double cut = std::floor((std::abs(x) / unit - below) * 65536);
  return std::copysign((below + (cut + (random >> 16) >= 65536 ? 1 : 0)) * unit, x);
}

uint32_t word_of(const AdamW::Segment& segment, int64_t i, int64_t updates) {
  const IndexMap& map = segment.map;
  const int64_t row = (map.first + i) / map.cols, col = (map.first + i) % map.cols;
  const auto element = static_cast<uint64_t>(map.origin + row * map.stride + col);
  const auto step = static_cast<uint64_t>(updates);
  return reference_philox({static_cast<uint32_t>(element / 4), static_cast<uint32_t>(element / 4 >> 32),
                           static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)},
                          {segment.key.k0, segment.key.k1})[element % 4];
}

struct Operands {
  const Operand& gradients;
  Operand& weights;
  Operand& exp_avg;
  Operand& exp_avg_sq;
  Operand& ema;
  AdamWEma op;
};

Operands make_operands(Trial& trial, const std::vector<AdamW::Segment>& segments, const StepState& state,
                       int64_t elements) {
  Operands operands{.gradients = trial.input(DType::f32, 1, elements),
                    .weights = trial.in_out(DType::bf16, 1, elements),
                    .exp_avg = trial.in_out(DType::f32, 1, elements, 0.1),
                    .exp_avg_sq = trial.in_out(DType::f32, 1, elements, 0.1),
                    .ema = trial.in_out(DType::f32, 1, elements),
                    .op = {}};
  for (int64_t i = 0; i < elements; ++i) operands.exp_avg_sq.set(0, i, std::abs(operands.exp_avg_sq.at(0, i)));
  set_segments(trial, operands.op, segments, state);
  operands.op.beta1 = 0.9;
  operands.op.beta2 = 0.95;
  operands.op.eps = 0.05;
  operands.op.weight_decay = 0.1;
  operands.op.ema = 0.8;
  operands.op.gradients = operands.gradients.matrix();
  operands.op.columns = {operands.exp_avg.matrix(), operands.exp_avg_sq.matrix(), operands.ema.matrix()};
  operands.op.weights = operands.weights.matrix();
  return operands;
}

// The weight before rounding, its moments, and a bound of the f32 error.
struct Updated {
  double weight, exp_avg, exp_avg_sq;
};

template <typename Real>
Updated updated(const AdamW& op, const StepState& state, const UpdateSegment& segment, double gradient,
                const Updated& before) {
  const Real g = static_cast<Real>(gradient) * static_cast<Real>(state.gradient_scale);
  const Real m = static_cast<Real>(op.beta1) * static_cast<Real>(before.exp_avg) + static_cast<Real>(1 - op.beta1) * g;
  const Real v =
      static_cast<Real>(op.beta2) * static_cast<Real>(before.exp_avg_sq) + static_cast<Real>(1 - op.beta2) * g * g;
  const Real correction1 = 1 - std::pow(static_cast<Real>(op.beta1), static_cast<Real>(state.updates));
  const Real correction2 = 1 - std::pow(static_cast<Real>(op.beta2), static_cast<Real>(state.updates));
  const Real step = m / correction1 / (std::sqrt(v / correction2) + static_cast<Real>(op.eps));
  const auto w = static_cast<Real>(before.weight);
  const auto rate = static_cast<Real>(state.learning_rate);
  const Real decay = segment.decay != 0 ? rate * static_cast<Real>(op.weight_decay) * w : Real{0};
  return {static_cast<double>(w - rate * static_cast<Real>(segment.rate_factor) * step - decay), static_cast<double>(m),
          static_cast<double>(v)};
}

// `cols` of `stride` columns are the box of the largest segment.
template <typename Op>
void check_update(Trial& trial, int64_t size, int64_t cols, int64_t stride, int64_t first) {
  // The last one passes 2^34 elements, where the counter's low half wraps around.
  const std::vector<AdamW::Segment> segments{
      {.offset = 0,
       .count = 1,
       .decay = 1,
       .rate_factor = 1,
       .key = {1, 2},
       .map = {.origin = 5, .first = 0, .cols = 1, .stride = 1}},
      {.offset = 64,
       .count = 13,
       .decay = 0,
       .rate_factor = 1,
       .key = {3, 4},
       .map = {.origin = 3, .first = 7, .cols = 1, .stride = 1}},
      {.offset = 128,
       .count = size,
       .decay = 1,
       .rate_factor = 0.5F,
       .key = {5, 6},
       .map = {.origin = 3 * stride + 8, .first = first, .cols = cols, .stride = stride}},
      {.offset = size + 192,
       .count = 31,
       .decay = 0,
       .rate_factor = 1,
       .key = {5, 6},
       .map = {.origin = (int64_t{1} << 34) - 16, .first = 2, .cols = 8, .stride = 8}}};
  const StepState state = state_after((int64_t{1} << 32) + 5);
  const Operands operands = make_operands(trial, segments, state, size + 256);
  const Op& op = operands.op;
  const std::vector<double> weights = operands.weights.values();
  std::vector<double> exp_avg = operands.exp_avg.values(), exp_avg_sq = operands.exp_avg_sq.values();
  std::vector<double> least = weights, most = weights, plain_avg = exp_avg, plain_sq = exp_avg_sq;
  std::vector<double> ema = operands.ema.values();
  constexpr bool averages = std::is_same_v<Op, AdamWEma>;
  for (const auto& segment : segments) {
    for (int64_t i = 0; i < segment.count; ++i) {
      const auto at = static_cast<size_t>(segment.offset + i);
      const Updated before{weights[at], exp_avg[at], exp_avg_sq[at]};
      const double g = operands.gradients.at(0, segment.offset + i);
      const Updated exact = updated<double>(op, state, segment, g, before);
      const Updated plain = updated<float>(op, state, segment, g, before);
      // Rounding with given random bits is monotonic: the f32 error of the weight bounds the result.
      const double error = 3 * std::abs(plain.weight - exact.weight) + std::ldexp(std::abs(exact.weight), -22);
      const uint32_t word = word_of(segment, i, state.updates);
      least[at] = stochastically_rounded(exact.weight - error, word);
      most[at] = stochastically_rounded(exact.weight + error, word);
      // After these updates the weight's share in the average is 1 - ema.
      if (averages) ema[at] = operands.op.ema * ema[at] + (1 - operands.op.ema) * exact.weight;
      exp_avg[at] = exact.exp_avg;
      exp_avg_sq[at] = exact.exp_avg_sq;
      plain_avg[at] = plain.exp_avg;
      plain_sq[at] = plain.exp_avg_sq;
    }
  }
  trial.run(op);
  trial.expect_close("exp_avg", operands.exp_avg, exp_avg, plain_avg, 3, 0x1p-24);
  trial.expect_close("exp_avg_sq", operands.exp_avg_sq, exp_avg_sq, plain_sq, 3, 0x1p-24);
  trial.expect_near("ema", operands.ema, ema, averages ? 0x1p-20 : 0);
  int64_t outside = 0, undecided = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double weight = operands.weights.at(0, static_cast<int64_t>(i));
    outside += weight < least[i] || weight > most[i] ? 1 : 0;
    undecided += least[i] != most[i] ? 1 : 0;
  }
  trial.expect_true(outside == 0, fmt::format("{} weights are rounded by other random bits", outside));
  trial.expect_true(undecided <= 2 + size / 500, fmt::format("{} weights could be either neighbour", undecided));
}

// Weights of 1 whose update ends 30% of the way from one bf16 number, 1 - 2^-8, to the next, 1.
constexpr double share_up = 0.7;
constexpr int64_t num_alike = 100'000;

// `updates` is so large that AdamW's bias corrections are 1.
std::vector<double> round_alike(Trial& trial, int64_t updates) {
  StepState state = state_after(updates);
  state.gradient_scale = 1;
  state.learning_rate = static_cast<float>((1 - share_up) * 0x1p-8);
  const std::vector<AdamW::Segment> segments{
      {.offset = 0, .count = num_alike, .decay = 0, .rate_factor = 1, .key = {7, 8}}};
  Operands operands = make_operands(trial, segments, state, num_alike);
  operands.weights.set_values(std::vector<double>(num_alike, 1));
  operands.exp_avg.set_values(std::vector<double>(num_alike, 1));
  operands.exp_avg_sq.set_values(std::vector<double>(num_alike, 1));
  operands.op.gradients = trial.input(DType::f32, 1, num_alike, std::vector<double>(num_alike, 1)).matrix();
  operands.op.eps = 1e-30;
  trial.run(static_cast<const AdamW&>(operands.op));
  return operands.weights.values();
}

// Checks means over 100,000 elements within five standard deviations.
void check_expectation(Trial& trial) {
  const std::vector<double> first = round_alike(trial, 100'001), second = round_alike(trial, 100'002);
  int64_t up = 0, same = 0, both = 0, others = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    others += first[i] != 1 && first[i] != 1 - 0x1p-8 ? 1 : 0;
    up += first[i] == 1 ? 1 : 0;
    same += first[i] == second[i] ? 1 : 0;
    both += i > 0 && first[i] == 1 && first[i - 1] == 1 ? 1 : 0;
  }
  const auto expect_share = [&](int64_t count, double share, std::string_view what) {
    const double deviation = std::abs(static_cast<double>(count) / num_alike - share);
    trial.expect_true(deviation < 5 * std::sqrt(share * (1 - share) / num_alike) * 1.5,
                      fmt::format("{}: {} away from {}", what, deviation, share));
  };
  trial.expect_true(others == 0, "only the two neighbours");
  expect_share(up, share_up, "rounded up");
  expect_share(same, share_up * share_up + (1 - share_up) * (1 - share_up), "the same in two steps");
  expect_share(both, share_up * share_up, "both of two neighbouring elements rounded up");
}

// Checks an update of zero: a bf16 number must stay the same whatever the random bits.
void check_representable(Trial& trial) {
  StepState state = state_after(9);
  state.learning_rate = 0;
  const std::vector<AdamW::Segment> segments{{.offset = 0, .count = 5000, .decay = 1, .rate_factor = 1, .key = {7, 8}}};
  Operands operands = make_operands(trial, segments, state, 5000);
  std::vector<double> weights = operands.weights.values();
  weights[0] = 0x1.fep127;
  weights[1] = -0x1p-126;
  weights[2] = 0;
  operands.weights.set_values(weights);
  trial.run(static_cast<const AdamW&>(operands.op));
  trial.expect_equal("weights", operands.weights, weights);
}

void check_skipped(Trial& trial) {
  StepState state = state_after(9);
  state.skip = 1;
  const std::vector<AdamW::Segment> segments{{.offset = 0, .count = 300, .decay = 1, .rate_factor = 1, .key = {7, 8}}};
  const Operands operands = make_operands(trial, segments, state, 300);
  const std::vector<double> weights = operands.weights.values(), exp_avg = operands.exp_avg.values(),
                            exp_avg_sq = operands.exp_avg_sq.values();
  trial.run(static_cast<const AdamW&>(operands.op));
  trial.expect_equal("weights", operands.weights, weights);
  trial.expect_equal("exp_avg", operands.exp_avg, exp_avg);
  trial.expect_equal("exp_avg_sq", operands.exp_avg_sq, exp_avg_sq);
}

void check_rejections(Trial& trial) {
  const std::vector<AdamW::Segment> segments{{.offset = 0, .count = 8, .decay = 1, .rate_factor = 1, .key = {7, 8}}};
  AdamW op = make_operands(trial, segments, state_after(1), 8).op;
  op.weights = {};
  trial.expect_rejected(op, "neither masters nor weights");
  op.weights = trial.in_out(DType::f32, 1, 8).matrix();
  trial.expect_rejected(op, "weights in f32 without masters");
}

void add_rounding_cases(Suite& suite) {
  struct Box {
    int64_t size, cols, stride, first;
  };
  // Whole rows, then a part of each row: a whole number of packs, twice, and less than one pack.
  for (const Box& box : {Box{.size = 1000, .cols = 40, .stride = 40, .first = 0},
                         {.size = 100003, .cols = 40, .stride = 40, .first = 12},
                         {.size = 50001, .cols = 12, .stride = 40, .first = 4},
                         {.size = 20011, .cols = 7, .stride = 9, .first = 3}}) {
    const std::string name =
        fmt::format("stochastic rounding, {} elements of {} of {} columns", box.size, box.cols, box.stride);
    suite.add<AdamW>(name, [=](Trial& t) { check_update<AdamW>(t, box.size, box.cols, box.stride, box.first); });
    suite.add<AdamWEma>(name, [=](Trial& t) { check_update<AdamWEma>(t, box.size, box.cols, box.stride, box.first); });
  }
  suite.add<AdamW>("stochastic rounding, expectation", check_expectation);
  suite.add<AdamW>("stochastic rounding keeps bf16 numbers", check_representable);
  suite.add<AdamW>("stochastic rounding, skipped", check_skipped);
  suite.add<AdamW>("stochastic rounding, rejections", check_rejections);
  suite.add_bench<AdamW>("40 M elements, bf16 weights only", [](Trial& t) {
    constexpr int64_t elements = 40'000'000;
    AdamW op{};
    set_segments(t, op, {{.offset = 0, .count = elements, .decay = 1, .rate_factor = 1, .key = {7, 8}}},
                 state_after(1));
    op.beta1 = 0.9;
    op.beta2 = 0.95;
    op.eps = 1e-8;
    const std::vector<double> zeros(static_cast<size_t>(elements));
    op.gradients = t.input(DType::f32, 1, elements, zeros).matrix();
    for (size_t i = 0; i < AdamW::num_columns; ++i) op.columns[i] = t.input(DType::f32, 1, elements, zeros).matrix();
    op.weights = t.input(DType::bf16, 1, elements, zeros).matrix();
    t.time(op);
  });
}

const Registration roundings(add_rounding_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_rounding
