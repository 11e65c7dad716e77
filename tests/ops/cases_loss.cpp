#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_loss {
namespace {

struct Shape {
  int64_t rows, vocab, padded;
};
constexpr Shape shapes[] = {{1, 1, 1}, {3, 7, 8}, {5, 31, 31}, {4, 257, 320}, {2, 4099, 4160}};

struct Options {
  DType logits, compute;
  double z_loss;
  double scale;  // scale of the logits
};

template <typename Real>
struct Losses {
  std::vector<Real> losses, gradient;
};

template <typename Real>
Losses<Real> cross_entropy(const std::vector<Real>& logits, const std::vector<int32_t>& targets, const Shape& shape,
                           double z_loss, double inverse_tokens) {
  Losses<Real> result{{}, std::vector<Real>(logits.size())};
  for (size_t row = 0; row < targets.size(); ++row) {
    const Real* x = logits.data() + row * static_cast<size_t>(shape.padded);
    if (targets[row] < 0) {
      result.losses.push_back(0);
      continue;
    }
    const Real maximum = *std::max_element(x, x + shape.vocab);
    Real sum = 0;
    for (int64_t i = 0; i < shape.vocab; ++i) sum += std::exp(x[i] - maximum);
    const Real lse = maximum + std::log(sum);
    result.losses.push_back(lse - x[targets[row]]);
    for (int64_t i = 0; i < shape.vocab; ++i) {
      const Real probability = std::exp(x[i] - lse);
      const Real one_hot = i == targets[row] ? Real{1} : Real{0};
      result.gradient[row * static_cast<size_t>(shape.padded) + static_cast<size_t>(i)] =
          (probability * (1 + 2 * static_cast<Real>(z_loss) * lse) - one_hot) * static_cast<Real>(inverse_tokens);
    }
  }
  return result;
}

// Returns targets, of which every third row is not counted.
std::vector<int32_t> random_targets(Trial& trial, const Shape& shape) {
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < shape.rows; ++row)
    targets.push_back(row % 3 == 2 ? -1 : static_cast<int32_t>(trial.random.below(shape.vocab)));
  return targets;
}

void check_cross_entropy(Trial& trial, const Shape& shape, const Options& options, bool in_place) {
  const std::vector<int32_t> targets = random_targets(trial, shape);
  const auto* const device_targets = Trial::pointer<const int32_t>(trial.input_array(targets));
  StepState state;
  state.inverse_tokens = 0.25F;
  state.loss_scale.value = 32;
  constexpr double factor = 0.25 * 32;
  const auto* const device_state = Trial::pointer<const StepState>(trial.in_out_value(state));
  Operand& logits = trial.in_out(options.logits, shape.rows, shape.padded, options.scale, 3);
  Operand& separate = trial.output(options.compute, shape.rows, shape.padded, 1);
  Operand& d_logits = in_place ? logits : separate;
  Operand& losses = trial.output(DType::f32, 1, shape.rows);
  // Padded columns are not part of the vocabulary, whatever they hold.
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int64_t col = shape.vocab; col < shape.padded; ++col) logits.set(row, col, 1e4);
  const std::vector<double> values = logits.values();
  trial.run(CrossEntropy{.vocab_size = shape.vocab,
                         .z_loss = options.z_loss,
                         .targets = device_targets,
                         .state = device_state,
                         .logits = logits.matrix(),
                         .d_logits = d_logits.matrix(),
                         .losses = losses.matrix()});

  const auto expected = cross_entropy(values, targets, shape, options.z_loss, factor);
  const auto plain = cross_entropy(to_real<float>(values), targets, shape, options.z_loss, factor);
  // A loss is a difference of logits, which f32 holds to 2^-24 of their size.
  trial.expect_close("losses", losses, expected.losses, to_double(plain.losses), 3, 0x1p-22 * options.scale);
  trial.expect_close("d_logits", d_logits, expected.gradient, rounded(to_double(plain.gradient), options.compute), 3,
                     32 * 0x1p-23);
  if (!in_place) trial.expect_equal("logits", logits, values);
}

// Checks evaluation without d_logits: the same losses, without z-loss.
void check_evaluation(Trial& trial) {
  constexpr Shape shape{5, 77, 80};
  const std::vector<int32_t> targets = random_targets(trial, shape);
  const auto* const device_targets = Trial::pointer<const int32_t>(trial.input_array(targets));
  const auto* const state = Trial::pointer<const StepState>(trial.in_out_value(StepState{}));
  const Operand& logits = trial.input(DType::f32, shape.rows, shape.padded);
  Operand& losses = trial.output(DType::f32, 1, shape.rows);
  trial.run(CrossEntropy{.vocab_size = shape.vocab,
                         .z_loss = 0.5,
                         .targets = device_targets,
                         .state = state,
                         .logits = logits.matrix(),
                         .d_logits = {},
                         .losses = losses.matrix()});
  trial.expect_near("losses", losses, cross_entropy(logits.values(), targets, shape, 0, 1).losses, 0x1p-21);
}

void check_not_finite(Trial& trial) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  // A logit of minus infinity has probability 0; NaN and plus infinity must show in the loss.
  const Operand& logits =
      trial.input(DType::f32, 3, 3, std::vector<double>{1, -infinity, 1, 1, nan, 1, 1, infinity, 1});
  const auto* const targets = Trial::pointer<const int32_t>(trial.input_array(std::vector<int32_t>{0, 0, 0}));
  const auto* const state = Trial::pointer<const StepState>(trial.in_out_value(StepState{}));
  Operand& losses = trial.output(DType::f32, 1, 3);
  trial.run(CrossEntropy{.vocab_size = 3,
                         .z_loss = 0,
                         .targets = targets,
                         .state = state,
                         .logits = logits.matrix(),
                         .d_logits = {},
                         .losses = losses.matrix()});
  trial.expect_true(std::abs(losses.at(0, 0) - std::log(2.0)) < 1e-6, "a logit of minus infinity has no share");
  trial.expect_true(!std::isfinite(losses.at(0, 1)), "a NaN logit gives a loss that is not finite");
  trial.expect_true(!std::isfinite(losses.at(0, 2)), "an infinite logit gives a loss that is not finite");
}

void check_reference_gradient(Trial& trial) {
  constexpr Shape shape{2, 5, 6};
  const std::vector<int32_t> targets{3, 0};
  const std::vector<double> logits = trial.input(DType::f32, shape.rows, shape.padded, 2).values();
  constexpr double z_loss = 0.1;
  const auto loss = [&](const std::vector<double>& moved) {
    double sum = 0;
    for (size_t row = 0; row < targets.size(); ++row) {
      double exponentials = 0;
      for (size_t i = 0; i < 5; ++i) exponentials += std::exp(moved[row * 6 + i]);
      const double lse = std::log(exponentials);
      sum += lse - moved[row * 6 + static_cast<size_t>(targets[row])] + z_loss * lse * lse;
    }
    return sum / 2;
  };
  const auto expected = cross_entropy(logits, targets, shape, z_loss, 0.5);
  trial.expect_true(difference_from_numeric(loss, logits, expected.gradient) < 1e-8, "d_logits is the derivative");
}

void check_rejections(Trial& trial) {
  const auto* const targets = Trial::pointer<const int32_t>(trial.input_array(std::vector<int32_t>{0, 7}));
  const auto* const state = Trial::pointer<const StepState>(trial.in_out_value(StepState{}));
  Operand& logits = trial.in_out(DType::f32, 2, 8);
  Operand& losses = trial.output(DType::f32, 1, 2);
  trial.expect_rejected_contents(CrossEntropy{.vocab_size = 7,
                                              .z_loss = 0,
                                              .targets = targets,
                                              .state = state,
                                              .logits = logits.matrix(),
                                              .d_logits = {},
                                              .losses = losses.matrix()},
                                 "a target in the padding of the vocabulary");
  trial.expect_rejected(CrossEntropy{.vocab_size = 9,
                                     .z_loss = 0,
                                     .targets = targets,
                                     .state = state,
                                     .logits = logits.matrix(),
                                     .d_logits = {},
                                     .losses = losses.matrix()},
                        "a vocabulary wider than the logits");
  Matrix other_dtype = logits.matrix();
  other_dtype.dtype = DType::bf16;
  trial.expect_rejected(CrossEntropy{.vocab_size = 8,
                                     .z_loss = 0,
                                     .targets = targets,
                                     .state = state,
                                     .logits = logits.matrix(),
                                     .d_logits = other_dtype,
                                     .losses = losses.matrix()},
                        "d_logits in place of logits in another dtype");
}

// The vocabulary in slices of `cols` columns; the last ones may be padding only.
struct Slices {
  Shape shape;
  int64_t cols;

  int64_t count() const { return shape.padded / cols; }
};
constexpr Slices sliced[] = {
    {{1, 1, 4}, 2}, {{5, 31, 32}, 16}, {{4, 257, 384}, 64}, {{7, 100, 300}, 100}, {{3, 4099, 8400}, 4200}};

struct RowStatistics {
  std::vector<double> maximum, sum, target;
};

// Returns the statistics of one slice, by definition.
RowStatistics statistics_of(const std::vector<double>& logits, const std::vector<int32_t>& targets,
                            const Slices& slices, int64_t first_token) {
  RowStatistics result;
  const int64_t end = std::min(slices.shape.vocab, first_token + slices.cols);
  for (int64_t row = 0; row < slices.shape.rows; ++row) {
    const double* x = logits.data() + row * slices.shape.padded;
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t i = first_token; i < end; ++i) maximum = std::max(maximum, x[i]);
    double sum = 0;
    for (int64_t i = first_token; i < end; ++i) sum += std::exp(x[i] - maximum);
    const int64_t target = targets[static_cast<size_t>(row)];
    result.maximum.push_back(maximum);
    result.sum.push_back(sum);
    result.target.push_back(target >= first_token && target < end ? x[target] : 0);
  }
  return result;
}

// Returns the columns of one slice as an operand.
Operand& slice_of(Trial& trial, const std::vector<double>& values, const Slices& slices, int64_t index, DType dtype) {
  Operand& slice = trial.in_out(dtype, slices.shape.rows, slices.cols, 1, 3);
  for (int64_t row = 0; row < slices.shape.rows; ++row)
    for (int64_t col = 0; col < slices.cols; ++col)
      slice.set(row, col, values[static_cast<size_t>(row * slices.shape.padded + index * slices.cols + col)]);
  return slice;
}

// Returns logits of the whole vocabulary, with huge padding.
std::vector<double> random_logits(Trial& trial, const Shape& shape, DType dtype, double scale) {
  std::vector<double> values = trial.input(dtype, shape.rows, shape.padded, scale).values();
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int64_t col = shape.vocab; col < shape.padded; ++col)
      values[static_cast<size_t>(row * shape.padded + col)] = 1e4;
  return values;
}

void check_statistics(Trial& trial, const Slices& slices, DType dtype, double scale) {
  const std::vector<double> values = random_logits(trial, slices.shape, dtype, scale);
  const std::vector<int32_t> targets = random_targets(trial, slices.shape);
  const auto* const device_targets = Trial::pointer<const int32_t>(trial.input_array(targets));
  for (int64_t index = 0; index < slices.count(); ++index) {
    const Operand& logits = slice_of(trial, values, slices, index, dtype);
    Operand& statistics = trial.output(DType::f32, 3, slices.shape.rows);
    trial.run(CrossEntropyStatistics{.vocab_size = slices.shape.vocab,
                                     .first_token = index * slices.cols,
                                     .targets = device_targets,
                                     .logits = logits.matrix(),
                                     .statistics = statistics.matrix()});
    const RowStatistics expected = statistics_of(values, targets, slices, index * slices.cols);
    for (int64_t row = 0; row < slices.shape.rows; ++row) {
      const auto i = static_cast<size_t>(row);
      trial.expect_true(statistics.at(0, row) == expected.maximum[i], "the maximum, exactly");
      // A sum of at most 4,200 numbers up to 1 in f32. Sequential roundings, without vectorisation, stay below 2^-18 of
      // it; one omitted number would be 2^-12.
      trial.expect_true(std::abs(statistics.at(1, row) - expected.sum[i]) <= 0x1p-18 * expected.sum[i],
                        "the sum of exponentials");
      trial.expect_true(statistics.at(2, row) == expected.target[i], "the target's logit, exactly, or 0");
    }
  }
}

// Checks that every slice finds the loss of the whole row, and the gradient of its own columns.
void check_slices(Trial& trial, const Slices& slices, const Options& options, bool in_place) {
  const Shape& shape = slices.shape;
  const std::vector<double> values = random_logits(trial, shape, options.logits, options.scale);
  const std::vector<int32_t> targets = random_targets(trial, shape);
  const auto* const device_targets = Trial::pointer<const int32_t>(trial.input_array(targets));
  StepState state;
  state.inverse_tokens = 0.25F;
  const auto* const device_state = Trial::pointer<const StepState>(trial.in_out_value(state));
  std::vector<double> all;
  for (int64_t index = 0; index < slices.count(); ++index) {
    const RowStatistics of_slice = statistics_of(values, targets, slices, index * slices.cols);
    for (const auto* part : {&of_slice.maximum, &of_slice.sum, &of_slice.target})
      all.insert(all.end(), part->begin(), part->end());
  }
  const Operand& statistics = trial.input(DType::f32, 3 * slices.count(), shape.rows, all);
  const auto expected = cross_entropy(values, targets, shape, options.z_loss, 0.25);
  const auto plain = cross_entropy(to_real<float>(values), targets, shape, options.z_loss, 0.25);
  for (int64_t index = 0; index < slices.count(); ++index) {
    Operand& logits = slice_of(trial, values, slices, index, options.logits);
    Operand& separate = trial.output(options.compute, shape.rows, slices.cols, 1);
    Operand& d_logits = in_place ? logits : separate;
    Operand& losses = trial.output(DType::f32, 1, shape.rows);
    const auto columns = [&](const std::vector<double>& whole) {
      std::vector<double> part;
      for (int64_t row = 0; row < shape.rows; ++row)
        for (int64_t col = 0; col < slices.cols; ++col)
          part.push_back(whole[static_cast<size_t>(row * shape.padded + index * slices.cols + col)]);
      return part;
    };
    trial.run(CrossEntropy{.vocab_size = shape.vocab,
                           .z_loss = options.z_loss,
                           .targets = device_targets,
                           .state = device_state,
                           .logits = logits.matrix(),
                           .d_logits = d_logits.matrix(),
                           .losses = losses.matrix(),
                           .statistics = statistics.matrix(),
                           .first_token = index * slices.cols});
    trial.expect_close("losses", losses, expected.losses, to_double(plain.losses), 3, 0x1p-22 * options.scale);
    trial.expect_close("d_logits", d_logits, columns(expected.gradient),
                       columns(rounded(to_double(plain.gradient), options.compute)), 3, 0x1p-23);
  }
}

// Checks that a NaN or an infinity in one slice reaches all.
void check_slices_not_finite(Trial& trial) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const auto* const targets = Trial::pointer<const int32_t>(trial.input_array(std::vector<int32_t>{0, 0, 0}));
  const auto* const state = Trial::pointer<const StepState>(trial.in_out_value(StepState{}));
  const Operand& own = trial.input(DType::f32, 3, 2, std::vector<double>{1, 1, 1, 1, 1, 1});
  const Operand& other = trial.input(DType::f32, 3, 2, std::vector<double>{-infinity, 1, nan, 1, infinity, 1});
  Operand& own_statistics = trial.output(DType::f32, 3, 3);
  Operand& other_statistics = trial.output(DType::f32, 3, 3);
  trial.run(CrossEntropyStatistics{.vocab_size = 4,
                                   .first_token = 0,
                                   .targets = targets,
                                   .logits = own.matrix(),
                                   .statistics = own_statistics.matrix()});
  trial.run(CrossEntropyStatistics{.vocab_size = 4,
                                   .first_token = 2,
                                   .targets = targets,
                                   .logits = other.matrix(),
                                   .statistics = other_statistics.matrix()});
  std::vector<double> all = own_statistics.values();
  const std::vector<double> more = other_statistics.values();
  all.insert(all.end(), more.begin(), more.end());
  Operand& losses = trial.output(DType::f32, 1, 3);
  trial.run(CrossEntropy{.vocab_size = 4,
                         .z_loss = 0,
                         .targets = targets,
                         .state = state,
                         .logits = own.matrix(),
                         .d_logits = {},
                         .losses = losses.matrix(),
                         .statistics = trial.input(DType::f32, 6, 3, all).matrix(),
                         .first_token = 0});
  trial.expect_true(std::abs(losses.at(0, 0) - std::log(3.0)) < 1e-6, "a logit of minus infinity has no share");
  trial.expect_true(!std::isfinite(losses.at(0, 1)), "a NaN logit of another slice");
  trial.expect_true(!std::isfinite(losses.at(0, 2)), "an infinite logit of another slice");
}

void check_slice_rejections(Trial& trial) {
  const auto* const targets = Trial::pointer<const int32_t>(trial.input_array(std::vector<int32_t>{0, 7}));
  const auto* const state = Trial::pointer<const StepState>(trial.in_out_value(StepState{}));
  const Operand& logits = trial.input(DType::f32, 2, 4);
  Operand& statistics = trial.output(DType::f32, 3, 2);
  Operand& two_rows = trial.output(DType::f32, 2, 2);
  Operand& losses = trial.output(DType::f32, 1, 2);
  trial.expect_rejected(CrossEntropyStatistics{.vocab_size = 8,
                                               .first_token = -4,
                                               .targets = targets,
                                               .logits = logits.matrix(),
                                               .statistics = statistics.matrix()},
                        "a slice that begins before the vocabulary");
  trial.expect_rejected_contents(CrossEntropyStatistics{.vocab_size = 7,
                                                        .first_token = 0,
                                                        .targets = targets,
                                                        .logits = logits.matrix(),
                                                        .statistics = statistics.matrix()},
                                 "a target outside the vocabulary");
  trial.expect_rejected(CrossEntropyStatistics{.vocab_size = 8,
                                               .first_token = 0,
                                               .targets = targets,
                                               .logits = logits.matrix(),
                                               .statistics = two_rows.matrix()},
                        "statistics of two rows");
  CrossEntropy op{.vocab_size = 8,
                  .z_loss = 0,
                  .targets = targets,
                  .state = state,
                  .logits = logits.matrix(),
                  .d_logits = {},
                  .losses = losses.matrix(),
                  .statistics = two_rows.matrix()};
  trial.expect_rejected(op, "statistics that are not three rows for each slice");
  op.statistics = {};
  op.vocab_size = 4;
  op.first_token = 4;
  trial.expect_rejected(op, "a slice without the statistics of the others");
}

void check_accumulate_loss(Trial& trial, int64_t count) {
  const Operand& losses = trial.input(DType::f32, 1, count);
  StepState state;
  state.loss_sum = 3.5;
  Operand& device_state = trial.in_out_value(state);
  trial.run(AccumulateLoss{losses.matrix(), Trial::pointer<StepState>(device_state)});
  double expected = 3.5;
  for (const double loss : losses.values()) expected += loss;
  trial.expect_true(Trial::value<StepState>(device_state).loss_sum == expected, "the sum in f64, in order");
}

void add_cases(Suite& suite) {
  struct Types {
    DType logits, compute;
  };
  for (const Types& types :
       {Types{DType::f32, DType::f32}, Types{DType::f32, DType::bf16}, Types{DType::bf16, DType::bf16},
        Types{DType::f16, DType::f16}, Types{DType::f32, DType::f16}}) {
    for (const Shape& shape : shapes) {
      const std::string name = fmt::format("N={} V={} Vp={} logits={} C={}", shape.rows, shape.vocab, shape.padded,
                                           dtype_name(types.logits), dtype_name(types.compute));
      for (const double scale : {1.0, 30.0}) {
        const Options options{
            .logits = types.logits, .compute = types.compute, .z_loss = scale == 1.0 ? 0.01 : 0, .scale = scale};
        const std::string full_name = fmt::format("{} z={} scale={}", name, options.z_loss, scale);
        suite.add<CrossEntropy>(full_name, [=](Trial& t) { check_cross_entropy(t, shape, options, false); });
        if (types.logits == types.compute)
          suite.add<CrossEntropy>(full_name + " in place",
                                  [=](Trial& t) { check_cross_entropy(t, shape, options, true); });
      }
    }
    const Shape bench_shape{suite.bench_rows(types.compute, 1024, 2048), 50257, 50304};
    suite.add_bench<CrossEntropy>(
        fmt::format("N={} V=50257 logits={} C={}", bench_shape.rows, dtype_name(types.logits),
                    dtype_name(types.compute)),
        [=](Trial& t) {
          const auto* const targets =
              Trial::pointer<const int32_t>(t.input_array(std::vector<int32_t>(static_cast<size_t>(bench_shape.rows))));
          const auto* const state = Trial::pointer<const StepState>(t.in_out_value(StepState{}));
          t.time(CrossEntropy{.vocab_size = bench_shape.vocab,
                              .z_loss = 0,
                              .targets = targets,
                              .state = state,
                              .logits = t.input(types.logits, bench_shape.rows, bench_shape.padded).matrix(),
                              .d_logits = t.output(types.compute, bench_shape.rows, bench_shape.padded).matrix(),
                              .losses = t.output(DType::f32, 1, bench_shape.rows).matrix()});
        });
  }
  for (const Slices& slices : sliced) {
    const std::string name = fmt::format("N={} V={} slices of {}", slices.shape.rows, slices.shape.vocab, slices.cols);
    for (const DType dtype : compute_dtypes) {
      for (const double scale : {1.0, 30.0}) {
        const std::string full_name = fmt::format("{} {} scale={}", name, dtype_name(dtype), scale);
        suite.add<CrossEntropyStatistics>(full_name, [=](Trial& t) { check_statistics(t, slices, dtype, scale); });
        for (const bool in_place : {false, true}) {
          const Options options{.logits = dtype, .compute = dtype, .z_loss = scale == 1.0 ? 0.01 : 0, .scale = scale};
          suite.add<CrossEntropy>(full_name + (in_place ? " in place" : ""),
                                  [=](Trial& t) { check_slices(t, slices, options, in_place); });
        }
      }
    }
    suite.add<CrossEntropy>(name + " f32 logits, bf16 gradients", [=](Trial& t) {
      check_slices(t, slices, {.logits = DType::f32, .compute = DType::bf16, .z_loss = 0.01, .scale = 1}, false);
    });
  }
  suite.add<CrossEntropy>("slices, not finite", check_slices_not_finite);
  suite.add<CrossEntropyStatistics>("rejections", check_slice_rejections);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const int64_t rows = suite.bench_rows(dtype, 1024, 5120);
    suite.add_bench<CrossEntropyStatistics>(
        fmt::format("N={} slice of 25152 {}", rows, dtype_name(dtype)), [=](Trial& t) {
          const auto* const targets =
              Trial::pointer<const int32_t>(t.input_array(std::vector<int32_t>(static_cast<size_t>(rows))));
          t.time(CrossEntropyStatistics{.vocab_size = 50257,
                                        .first_token = 0,
                                        .targets = targets,
                                        .logits = t.input(dtype, rows, 25152).matrix(),
                                        .statistics = t.output(DType::f32, 3, rows).matrix()});
        });
  }
  suite.add<CrossEntropy>("evaluation", check_evaluation);
  suite.add<CrossEntropy>("not finite", check_not_finite);
  suite.add<CrossEntropy>("derivative", check_reference_gradient);
  suite.add<CrossEntropy>("rejections", check_rejections);
  for (const int64_t count : {1, 7, 1031})
    suite.add<AccumulateLoss>(fmt::format("N={}", count), [=](Trial& t) { check_accumulate_loss(t, count); });
  suite.add_bench<AccumulateLoss>("N=8192", [](Trial& t) {
    t.time(
        AccumulateLoss{t.input(DType::f32, 1, 8192).matrix(), Trial::pointer<StepState>(t.in_out_value(StepState{}))});
  });
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_loss
