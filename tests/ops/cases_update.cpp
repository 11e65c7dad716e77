// The gradient norm, the decision to update, AdamW with and without an average of the weights, and Cast.
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_update {
namespace {

constexpr double beta1 = 0.9, beta2 = 0.95;

// Segments with gaps, of one element, and longer than the chunks that threads share. The last has its own learning
// rate.
std::vector<AdamW::Segment> segments_of(int64_t size) {
  return {{.offset = 0, .count = 1, .decay = 1},
          {.offset = 64, .count = 13, .decay = 0},
          {.offset = 128, .count = size, .decay = 1},
          {.offset = size + 192, .count = 31, .decay = 1, .rate_factor = 0.25F}};
}

int64_t elements_of(int64_t size) { return size + 256; }

void check_squared_norm(Trial& trial, int64_t size) {
  std::vector<SquaredNorm::Segment> segments;
  // The last two add to one sum; one sum has no segment.
  const std::vector<int64_t> partial_of{0, 1, 3, 3};
  for (const auto& segment : segments_of(size))
    segments.push_back({segment.offset, segment.count, partial_of[segments.size()]});
  const Operand& gradients = trial.input(DType::f32, 1, elements_of(size), 3);
  const auto count = static_cast<int64_t>(segments.size());
  Operand& partials = trial.output(DType::f64, 1, 4);
  trial.run(SquaredNorm{.segments = Trial::pointer<const SquaredNorm::Segment>(trial.input_array(segments)),
                        .num_segments = count,
                        .gradients = gradients.matrix(),
                        .partials = partials.matrix()});
  std::vector<double> expected(4);
  for (const auto& segment : segments) {
    long double sum = 0;
    for (int64_t i = 0; i < segment.count; ++i) {
      const long double value = gradients.at(0, segment.offset + i);
      sum += value * value;
    }
    expected[static_cast<size_t>(segment.partial)] += static_cast<double>(sum);
  }
  // Sums of positive numbers in f64: the relative error is below the number of additions times 2^-53.
  trial.expect_near("partials", partials, expected, static_cast<double>(size) * 0x1p-53 * expected[3]);
}

void check_large_gradients(Trial& trial) {
  const Operand& gradients = trial.input(DType::f32, 1, 3, std::vector<double>{3e30, 4e30, 0});
  Operand& partials = trial.output(DType::f64, 1, 1);
  const std::vector<SquaredNorm::Segment> segments{{0, 3, 0}};
  trial.run(SquaredNorm{.segments = Trial::pointer<const SquaredNorm::Segment>(trial.input_array(segments)),
                        .num_segments = 1,
                        .gradients = gradients.matrix(),
                        .partials = partials.matrix()});
  trial.expect_true(std::abs(std::sqrt(partials.at(0, 0)) / 5e30 - 1) < 1e-6, "squares that f32 cannot hold");
}

StepState prepare(Trial& trial, const std::vector<double>& partials, double clip_norm, StepState state,
                  int64_t loss_scale_window = 0) {
  const Operand& values = trial.input(DType::f64, 1, static_cast<int64_t>(partials.size()), partials);
  Operand& device_state = trial.in_out_value(state);
  trial.run(PrepareUpdate{.partials = values.matrix(),
                          .clip_norm = clip_norm,
                          .state = Trial::pointer<StepState>(device_state),
                          .loss_scale_window = loss_scale_window});
  return Trial::value<StepState>(device_state);
}

void check_prepare_update(Trial& trial) {
  StepState before;
  before.loss_sum = 12;
  before.updates = 4;
  const StepState clipped = prepare(trial, {9, 7, 9}, 2, before);
  trial.expect_true(clipped.squared_norm == 25, "squared_norm is the sum of partials");
  trial.expect_true(clipped.gradient_scale == 0.4F, "gradient_scale is clip_norm / norm");
  trial.expect_true(clipped.skip == 0 && clipped.updates == 5, "a finite step counts");
  trial.expect_true(clipped.loss_sum == 12, "loss_sum is kept");
  trial.expect_true(prepare(trial, {9, 16}, 4.999, before).gradient_scale < 1, "a norm just above the limit");
  trial.expect_true(prepare(trial, {9, 16}, 5.001, before).gradient_scale == 1, "a norm just below the limit");
  trial.expect_true(prepare(trial, {16}, 5, before).gradient_scale == 1, "a norm below the limit is left");
  trial.expect_true(prepare(trial, {16}, 0, before).gradient_scale == 1, "clip_norm 0 means no clipping");
  trial.expect_true(prepare(trial, {0}, 1, before).gradient_scale == 1, "a norm of 0");
}

void check_scores(Trial& trial) {
  const Operand& partials = trial.input(DType::f64, 1, 1, std::vector<double>{1});
  const Operand& scores = trial.input(DType::f32, 1, 5, std::vector<double>{-3, 2, 7.5, 4, 5});
  for (const bool finite : {true, false}) {
    StepState state;
    if (!finite) state.loss_sum = std::nan("");
    Operand& device_state = trial.in_out_value(state);
    trial.run(PrepareUpdate{.partials = partials.matrix(),
                            .clip_norm = 1,
                            .state = Trial::pointer<StepState>(device_state),
                            .scores = scores.matrix(),
                            .score_threshold = 4});
    const auto after = Trial::value<StepState>(device_state);
    trial.expect_true(after.largest_score == 7.5F, "the largest score");
    trial.expect_true(after.clipped_heads == (finite ? 2 : 0), "heads above the threshold, where there is an update");
  }
}

void check_skip(Trial& trial) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  StepState before;
  before.updates = 4;
  const auto expect_skipped = [&](const StepState& after, std::string_view why) {
    trial.expect_true(after.skip == 1, why);
    trial.expect_true(after.updates == 4, "it does not count");
  };
  expect_skipped(prepare(trial, {1, infinity}, 1, before), "an infinite gradient");
  expect_skipped(prepare(trial, {std::nan(""), 1}, 1, before), "a NaN gradient");
  before.loss_sum = std::nan("");
  expect_skipped(prepare(trial, {1}, 1, before), "a NaN loss");
  before.loss_sum = infinity;
  expect_skipped(prepare(trial, {1}, 1, before), "an infinite loss");
}

// Checks that norm and update are exactly those of unscaled gradients.
void check_loss_scaling(Trial& trial) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  StepState before;
  before.loss_scale = {0x1p10F, 0};
  const StepState good = prepare(trial, {9 * 0x1p20, 16 * 0x1p20}, 2, before, 3);
  trial.expect_true(good.squared_norm == 25, "squared_norm is of gradients without the scale");
  trial.expect_true(good.gradient_scale == 0.4F * 0x1p-10F, "the update divides the scale out");
  trial.expect_true(prepare(trial, {0x1p20}, 2, before, 3).gradient_scale == 0x1p-10F, "without clipping, too");
  trial.expect_true(
      good.step_loss_scale == 0x1p10F && good.loss_scale.value == 0x1p10F && good.loss_scale.good_steps == 1,
      "a good step counts");
  before.loss_scale.good_steps = 2;
  const StepState doubled = prepare(trial, {1}, 2, before, 3);
  trial.expect_true(doubled.loss_scale.value == 0x1p11F && doubled.loss_scale.good_steps == 0,
                    "as many as the window double the scale");
  trial.expect_true(doubled.step_loss_scale == 0x1p10F, "the step's own scale is kept");
  const StepState halved = prepare(trial, {infinity}, 2, before, 3);
  trial.expect_true(halved.skip == 1 && halved.updates == 0, "an overflow skips the update");
  trial.expect_true(halved.loss_scale.value == 0x1p9F && halved.loss_scale.good_steps == 0, "and halves the scale");
  before.loss_scale.value = 1;
  trial.expect_true(prepare(trial, {std::nan("")}, 2, before, 3).loss_scale.value == 1, "the scale is at least 1");
  before.loss_scale.value = most_loss_scale;
  trial.expect_true(prepare(trial, {1}, 2, before, 3).loss_scale.value == most_loss_scale, "the scale has a limit");
  before.loss_scale = {};
  const StepState without = prepare(trial, {infinity}, 2, before);
  trial.expect_true(without.loss_scale.value == 1 && without.loss_scale.good_steps == 0, "no window: no scale");
}

struct Buffers {
  const Operand& gradients;
  Operand& master;
  Operand& exp_avg;
  Operand& exp_avg_sq;
  Operand& ema;
  Operand& weights;
};

Buffers make_buffers(Trial& trial, int64_t elements, DType weights) {
  Buffers buffers{.gradients = trial.input(DType::f32, 1, elements),
                  .master = trial.in_out(DType::f32, 1, elements),
                  .exp_avg = trial.in_out(DType::f32, 1, elements, 0.1),
                  .exp_avg_sq = trial.in_out(DType::f32, 1, elements, 0.1),
                  .ema = trial.in_out(DType::f32, 1, elements),
                  .weights = trial.in_out(weights, 1, elements)};
  for (int64_t i = 0; i < elements; ++i) buffers.exp_avg_sq.set(0, i, std::abs(buffers.exp_avg_sq.at(0, i)));
  return buffers;
}

template <typename Real>
struct Moments {
  std::vector<Real> master, exp_avg, exp_avg_sq, ema;
};

// Computes AdamW with the average that AdamWEma keeps.
template <typename Real>
Moments<Real> adamw(const Buffers& buffers, const std::vector<AdamW::Segment>& segments, const AdamWEma& op,
                    const StepState& state) {
  Moments<Real> result{.master = to_real<Real>(buffers.master.values()),
                       .exp_avg = to_real<Real>(buffers.exp_avg.values()),
                       .exp_avg_sq = to_real<Real>(buffers.exp_avg_sq.values()),
                       .ema = to_real<Real>(buffers.ema.values())};
  const Real share =
      (1 - static_cast<Real>(op.ema)) / (1 - std::pow(static_cast<Real>(op.ema), static_cast<Real>(state.updates)));
  const Real correction1 = 1 - std::pow(static_cast<Real>(op.beta1), static_cast<Real>(state.updates));
  const Real correction2 = 1 - std::pow(static_cast<Real>(op.beta2), static_cast<Real>(state.updates));
  for (const auto& segment : segments) {
    const auto lr = static_cast<Real>(state.learning_rate);
    const Real rate = lr * static_cast<Real>(segment.rate_factor);
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const Real g = static_cast<Real>(buffers.gradients.at(0, i)) * static_cast<Real>(state.gradient_scale);
      Real& m = result.exp_avg[i];
      Real& v = result.exp_avg_sq[i];
      Real& w = result.master[i];
      m = static_cast<Real>(op.beta1) * m + static_cast<Real>(1 - op.beta1) * g;
      v = static_cast<Real>(op.beta2) * v + static_cast<Real>(1 - op.beta2) * g * g;
      const Real m_hat = m / correction1;
      const Real v_hat = v / correction2;
      const Real decay = segment.decay != 0 ? lr * static_cast<Real>(op.weight_decay) * w : Real{0};
      w -= rate * (m_hat / (std::sqrt(v_hat) + static_cast<Real>(op.eps))) + decay;
      result.ema[i] = share * w + (1 - share) * result.ema[i];
    }
  }
  return result;
}

template <typename Op>
void check_adamw(Trial& trial, int64_t size, DType weights_dtype, bool with_weights, bool skip) {
  const std::vector<AdamW::Segment> segments = segments_of(size);
  const StepState state = state_after(3, skip);
  const Buffers buffers = make_buffers(trial, elements_of(size), weights_dtype);
  AdamWEma op{};
  set_segments(trial, op, segments, state);
  op.beta1 = beta1;
  op.beta2 = beta2;
  op.eps = 0.05;  // comparable to the root, so that its place in the formula shows
  op.weight_decay = 0.1;
  op.ema = 0.8;
  op.gradients = buffers.gradients.matrix();
  op.master = buffers.master.matrix();
  op.columns = {buffers.exp_avg.matrix(), buffers.exp_avg_sq.matrix(), buffers.ema.matrix()};
  if (with_weights) op.weights = buffers.weights.matrix();

  const std::vector<AdamW::Segment> updated = skip ? std::vector<AdamW::Segment>{} : segments;
  const auto expected = adamw<double>(buffers, updated, op, state);
  const auto plain = adamw<float>(buffers, updated, op, state);
  std::vector<double> weights = buffers.weights.values();
  constexpr bool averages = std::is_same_v<Op, AdamWEma>;
  const std::vector<double> untouched = buffers.ema.values();
  trial.run(static_cast<const Op&>(op));
  if (averages) {
    trial.expect_close("ema", buffers.ema, expected.ema, to_double(plain.ema));
  } else {
    trial.expect_equal("ema", buffers.ema, untouched);
  }
  // The reference also has the elements between segments, which must not change.
  trial.expect_close("master", buffers.master, expected.master, to_double(plain.master));
  trial.expect_close("exp_avg", buffers.exp_avg, expected.exp_avg, to_double(plain.exp_avg), 3, 0x1p-24);
  trial.expect_close("exp_avg_sq", buffers.exp_avg_sq, expected.exp_avg_sq, to_double(plain.exp_avg_sq), 3, 0x1p-24);
  if (with_weights) {
    for (const auto& segment : updated)
      for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i)
        weights[i] = rounded(buffers.master.at(0, i), weights_dtype);
  }
  trial.expect_equal("weights", buffers.weights, weights);
}

void check_cast(Trial& trial, DType from_dtype, DType to_dtype, int64_t rows, int64_t cols) {
  const Operand& from = trial.input(from_dtype, rows, cols, 100, 3);
  Operand& to = trial.output(to_dtype, rows, cols, 1);
  trial.run(Cast{from.matrix(), to.matrix()});
  trial.expect_equal("to", to, rounded(from.values(), to_dtype));
}

void check_nans(Trial& trial, DType dtype) {
  const Operand& nans = trial.input(DType::f32, 1, 40, std::vector<double>(40, std::nan("")));
  Operand& of_nans = trial.in_out(dtype, 1, 40);
  trial.run(Cast{nans.matrix(), of_nans.matrix()});
  for (const double value : of_nans.values()) trial.expect_true(std::isnan(value), "NaN stays NaN");
}

// Checks that ties go to even, the largest floats to infinity, and NaN stays NaN.
void check_cast_rounding(Trial& trial) {
  const std::vector<double> values{1 + 0x1p-8,
                                   1 + 3 * 0x1p-8,
                                   -(1 + 0x1p-8),
                                   1 + 0x1p-8 + 0x1p-23,
                                   static_cast<double>(std::numeric_limits<float>::max()),
                                   std::numeric_limits<double>::infinity(),
                                   0x1p-133,
                                   -0.0};
  const std::vector<double> expected{1,
                                     1 + 0x1p-6,
                                     -1,
                                     1 + 0x1p-7,
                                     std::numeric_limits<double>::infinity(),
                                     std::numeric_limits<double>::infinity(),
                                     0x1p-133,
                                     0};
  const auto count = static_cast<int64_t>(values.size());
  Operand& to = trial.output(DType::bf16, 1, count);
  trial.run(Cast{trial.input(DType::f32, 1, count, values).matrix(), to.matrix()});
  trial.expect_equal("to", to, expected);
  check_nans(trial, DType::bf16);
}

// Checks the same, and subnormals: multiples of 2^-24.
void check_cast_rounding_to_f16(Trial& trial) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values{1 + 0x1p-11, 1 + 3 * 0x1p-11, -(1 + 0x1p-11), 1 + 0x1p-11 + 0x1p-23,
                                   65519,       -65520,          infinity,       0x1p-14,
                                   5 * 0x1p-25, 7 * 0x1p-25,     0x1p-25,        -0x1p-26};
  const std::vector<double> expected{1,        1 + 0x1p-9, -1,          1 + 0x1p-10, 65504, -infinity,
                                     infinity, 0x1p-14,    2 * 0x1p-24, 4 * 0x1p-24, 0,     0};
  const auto count = static_cast<int64_t>(values.size());
  Operand& to = trial.output(DType::f16, 1, count);
  trial.run(Cast{trial.input(DType::f32, 1, count, values).matrix(), to.matrix()});
  trial.expect_equal("to", to, expected);
  Operand& back = trial.output(DType::f32, 1, count);
  trial.run(Cast{to.matrix(), back.matrix()});
  trial.expect_equal("back", back, expected);
  check_nans(trial, DType::f16);
}

// Checks for equality: one sum in f32 is exact.
void check_add(Trial& trial, DType dtype, int64_t rows, int64_t cols) {
  const Operand& from = trial.input(dtype, rows, cols, 1, 3);
  Operand& to = trial.in_out(DType::f32, rows, cols, 1, 1);
  std::vector<double> expected = to.values();
  const std::vector<double> added = from.values();
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = rounded(expected[i] + added[i], DType::f32);
  trial.run(Add{from.matrix(), to.matrix()});
  trial.expect_equal("to", to, expected);
}

// Checks for equal bits: sums in f64, rounded once.
void check_add_sums(Trial& trial, int64_t n, bool accumulate) {
  const Operand& sums = trial.input(DType::f64, 1, n, 3);
  Operand& gradient = accumulate ? trial.in_out(DType::f32, 1, n) : trial.output(DType::f32, 1, n);
  std::vector<double> expected;
  for (int64_t i = 0; i < n; ++i)
    expected.push_back(static_cast<float>(sums.at(0, i) + (accumulate ? gradient.at(0, i) : 0.0)));
  trial.run(AddSums{sums.matrix(), gradient.matrix(), accumulate});
  trial.expect_equal("gradient", gradient, expected);
}

// Checks sums of several rows, of some elements: all others are 0.
void check_add_some_sums(Trial& trial, bool accumulate) {
  constexpr int64_t n = 300, first = 7, count = 130;
  const Operand& sums = trial.input(DType::f64, 3, count, 3, 5);
  Operand& gradient = accumulate ? trial.in_out(DType::f32, 1, n) : trial.output(DType::f32, 1, n);
  std::vector<double> expected;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i - first;
    const double sum = at < 0 || at >= count ? 0 : sums.at(0, at) + sums.at(1, at) + sums.at(2, at);
    expected.push_back(static_cast<float>(sum + (accumulate ? gradient.at(0, i) : 0.0)));
  }
  trial.run(AddSums{.sums = sums.matrix(), .gradient = gradient.matrix(), .accumulate = accumulate, .first = first});
  trial.expect_equal("gradient", gradient, expected);
}

void check_add_sums_rejections(Trial& trial) {
  const Operand& sums = trial.input(DType::f64, 1, 8);
  const Operand& narrow_sums = trial.input(DType::f32, 1, 8);
  Operand& gradient = trial.output(DType::f32, 1, 8);
  Operand& shorter = trial.output(DType::f32, 1, 7);
  trial.expect_rejected(AddSums{sums.matrix(), shorter.matrix(), false}, "another length");
  trial.expect_rejected(AddSums{narrow_sums.matrix(), gradient.matrix(), false}, "sums in f32");
  trial.expect_rejected(AddSums{.sums = sums.matrix(), .gradient = gradient.matrix(), .accumulate = false, .first = 1},
                        "sums past the last element");
}

void check_add_rejections(Trial& trial) {
  const Operand& from = trial.input(DType::f32, 2, 3);
  Operand& narrower = trial.in_out(DType::f32, 2, 2);
  Operand& bf16_to = trial.in_out(DType::bf16, 2, 3);
  trial.expect_rejected(Add{from.matrix(), narrower.matrix()}, "another shape");
  trial.expect_rejected(Add{from.matrix(), bf16_to.matrix()}, "a sum in bf16");
}

template <typename Op>
void add_adamw_cases(Suite& suite, const std::string& name, int64_t size) {
  suite.add<Op>(name + " f32", [=](Trial& t) { check_adamw<Op>(t, size, DType::f32, false, false); });
  suite.add<Op>(name + " f32 weights", [=](Trial& t) { check_adamw<Op>(t, size, DType::f32, true, false); });
  suite.add<Op>(name + " bf16 weights", [=](Trial& t) { check_adamw<Op>(t, size, DType::bf16, true, false); });
  suite.add<Op>(name + " f16 weights", [=](Trial& t) { check_adamw<Op>(t, size, DType::f16, true, false); });
}

// Checks that from zeros, the average of 100 updates is the weighted mean of the weights after each, where the weights
// k updates ago count ema^k.
void check_average_of_a_run(Trial& trial) {
  constexpr int64_t elements = 37;
  constexpr int num_updates = 100;
  const std::vector<AdamW::Segment> segments{{0, elements, 1}};
  StepState state;
  state.learning_rate = 0.01F;
  state.gradient_scale = 1;
  const Operand& gradients = trial.input(DType::f32, 1, elements);
  Operand& master = trial.in_out(DType::f32, 1, elements);
  Operand& exp_avg = trial.in_out(DType::f32, 1, elements, 0);
  Operand& exp_avg_sq = trial.in_out(DType::f32, 1, elements, 0);
  Operand& ema = trial.in_out(DType::f32, 1, elements, 0);
  AdamWEma op{};
  op.segments = Trial::pointer<const AdamW::Segment>(trial.input_array(segments));
  op.num_segments = 1;
  op.beta1 = beta1;
  op.beta2 = beta2;
  op.eps = 1e-8;
  op.ema = 0.95;
  op.gradients = gradients.matrix();
  op.master = master.matrix();
  op.columns = {exp_avg.matrix(), exp_avg_sq.matrix(), ema.matrix()};
  std::vector<double> sums(elements);
  double shares = 0;
  for (int t = 1; t <= num_updates; ++t) {
    state.updates = t;
    op.state = Trial::pointer<const StepState>(trial.in_out_value(state));
    trial.run(op);
    shares = shares * op.ema + 1;
    for (int64_t i = 0; i < elements; ++i)
      sums[static_cast<size_t>(i)] = sums[static_cast<size_t>(i)] * op.ema + master.at(0, i);
  }
  for (double& sum : sums) sum /= shares;
  // Each update rounds the average, which is below 4, twice to 2^-24 of it. The errors shrink by ema, so at
  // most 20 add up.
  trial.expect_near("ema", ema, sums, 20 * 2 * 4 * 0x1p-24);
}

void add_update_cases(Suite& suite) {
  for (const int64_t size : {1, 17, 1000, 100003}) {
    const std::string name = fmt::format("segment of {}", size);
    suite.add<SquaredNorm>(name, [=](Trial& t) { check_squared_norm(t, size); });
    add_adamw_cases<AdamW>(suite, name, size);
    add_adamw_cases<AdamWEma>(suite, name, size);
  }
  suite.add<AdamW>("skipped", [](Trial& t) { check_adamw<AdamW>(t, 100, DType::bf16, true, true); });
  suite.add<AdamWEma>("skipped", [](Trial& t) { check_adamw<AdamWEma>(t, 100, DType::bf16, true, true); });
  suite.add<AdamWEma>("a run of updates", check_average_of_a_run);
  suite.add<SquaredNorm>("large gradients", check_large_gradients);
  suite.add<PrepareUpdate>("clipping and counting", check_prepare_update);
  suite.add<PrepareUpdate>("steps that are not finite", check_skip);
  suite.add<PrepareUpdate>("loss scaling", check_loss_scaling);
  suite.add<PrepareUpdate>("attention scores", check_scores);
  for (const DType from : compute_dtypes) {
    for (const DType to : compute_dtypes) {
      for (const auto& [rows, cols] :
           {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {7, 64}, {9, 64}, {5, 129}, {1, 40003}}) {
        const auto n = rows, c = cols;
        suite.add<Cast>(fmt::format("[{}, {}] {} to {}", n, c, dtype_name(from), dtype_name(to)),
                        [=](Trial& t) { check_cast(t, from, to, n, c); });
      }
    }
  }
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {7, 64}, {9, 64}, {5, 129}, {1, 40003}}) {
    const auto n = rows, c = cols;
    suite.add<Add>(fmt::format("[{}, {}]", n, c), [=](Trial& t) { check_add(t, DType::f32, n, c); });
  }
  // More elements than a device's threads have at once: each must be added once.
  suite.add<Add>("[80021, 7]", [](Trial& t) { check_add(t, DType::f32, 80021, 7); });
  suite.add<Add>("bf16 [9, 64]", [](Trial& t) { check_add(t, DType::bf16, 9, 64); });
  suite.add<Add>("bf16 [5, 129]", [](Trial& t) { check_add(t, DType::bf16, 5, 129); });
  suite.add<Add>("rejections", check_add_rejections);
  for (const int64_t n : {1, 7, 300, 5000}) {
    for (const bool accumulate : {false, true}) {
      suite.add<AddSums>(fmt::format("n={}{}", n, accumulate ? " adding" : ""),
                         [=](Trial& t) { check_add_sums(t, n, accumulate); });
    }
  }
  for (const bool accumulate : {false, true})
    suite.add<AddSums>(fmt::format("three rows, some elements{}", accumulate ? " adding" : ""),
                       [=](Trial& t) { check_add_some_sums(t, accumulate); });
  suite.add<AddSums>("rejections", check_add_sums_rejections);
  suite.add<Cast>("rounding", check_cast_rounding);
  suite.add<Cast>("rounding to f16", check_cast_rounding_to_f16);
  suite.add<Cast>("rejections", [](Trial& t) {
    const Operand& from = t.input(DType::f32, 2, 3);
    Operand& to = t.output(DType::bf16, 3, 2);
    t.expect_rejected(Cast{from.matrix(), to.matrix()}, "another shape");
    Operand& f64 = t.output(DType::f64, 2, 3);
    t.expect_rejected(Cast{from.matrix(), f64.matrix()}, "a dtype that nothing trains in");
    Matrix in_f16 = t.output(DType::bf16, 2, 3).matrix();
    in_f16.dtype = DType::f16;
    t.expect_rejected_contents(Add{from.matrix(), in_f16}, "f16 on the CPU");
  });
}

template <typename Op>
void time_adamw(Trial& trial, int64_t elements, bool with_weights) {
  StepState state;
  state.learning_rate = 1e-3F;
  state.gradient_scale = 1;
  state.updates = 1;
  AdamWEma op{};
  set_segments(trial, op, {{0, elements, 1}}, state);
  op.beta1 = beta1;
  op.beta2 = beta2;
  op.eps = 1e-8;
  op.ema = 0.999;
  op.gradients = trial.input(DType::f32, 1, elements, 0).matrix();
  op.master = trial.input(DType::f32, 1, elements, 0).matrix();
  for (size_t i = 0; i < Op::num_columns; ++i) op.columns[i] = trial.input(DType::f32, 1, elements, 0).matrix();
  if (with_weights) op.weights = trial.output(DType::bf16, 1, elements).matrix();
  trial.time(static_cast<const Op&>(op));
}

void add_benches(Suite& suite) {
  const int64_t elements = suite.bench_rows(DType::bf16, 40'000'000, 64'000'000);
  const auto named = [=](const char* what) { return fmt::format("{} M {}", elements / 1'000'000, what); };
  suite.add_bench<SquaredNorm>(named("gradients"), [=](Trial& t) {
    const std::vector<SquaredNorm::Segment> segments{{0, elements, 0}};
    t.time(SquaredNorm{.segments = Trial::pointer<const SquaredNorm::Segment>(t.input_array(segments)),
                       .num_segments = 1,
                       .gradients = t.output(DType::f32, 1, elements).matrix(),
                       .partials = t.output(DType::f64, 1, 1).matrix()});
  });
  suite.add_bench<PrepareUpdate>("148 tensors", [](Trial& t) {
    t.time(PrepareUpdate{t.input(DType::f64, 1, 148, std::vector<double>(148, 1.0)).matrix(), 1,
                         Trial::pointer<StepState>(t.in_out_value(StepState{}))});
  });
  for (const bool with_weights : {false, true}) {
    const std::string name = named(with_weights ? "elements, bf16 weights" : "elements");
    suite.add_bench<AdamW>(name, [=](Trial& t) { time_adamw<AdamW>(t, elements, with_weights); });
    suite.add_bench<AdamWEma>(name, [=](Trial& t) { time_adamw<AdamWEma>(t, elements, with_weights); });
  }
  suite.add_bench<AddSums>("n=8192", [](Trial& t) {
    t.time(AddSums{t.input(DType::f64, 1, 8192).matrix(), t.in_out(DType::f32, 1, 8192).matrix(), true});
  });
  suite.add_bench<Add>(named("elements"), [=](Trial& t) {
    t.time(Add{t.input(DType::f32, 1, elements, 0).matrix(), t.in_out(DType::f32, 1, elements).matrix()});
  });
  suite.add_bench<Cast>(named("elements f32 to bf16"), [=](Trial& t) {
    t.time(Cast{t.input(DType::f32, 1, elements, 0).matrix(), t.output(DType::bf16, 1, elements).matrix()});
  });
}

const Registration updates(add_update_cases);
const Registration benches(add_benches);

}  // namespace
}  // namespace gptrain::ops_test::cases_update
