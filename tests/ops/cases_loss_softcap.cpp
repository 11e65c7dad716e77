// Cross-entropy of logits that are bounded by softcap * tanh(logit / softcap).
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_loss_softcap {
namespace {

constexpr int64_t rows = 5;
constexpr double factor = 0.25 * 32;  // inverse_tokens and the loss scale

struct Shape {
  int64_t vocab, padded, slice;  // slice: columns of a tensor rank
};
constexpr Shape shapes[] = {{31, 32, 16}, {257, 384, 64}, {4099, 4104, 4104}};

struct Options {
  DType dtype;
  double softcap, scale;  // scale: of the logits
  double z_loss = 0.01;
};

template <typename Real>
struct Losses {
  std::vector<Real> losses, gradient;
};

template <typename Real>
Losses<Real> cross_entropy(const std::vector<Real>& logits, const std::vector<int32_t>& targets, const Shape& shape,
                           const Options& options) {
  const auto cap = static_cast<Real>(options.softcap), z = static_cast<Real>(options.z_loss);
  Losses<Real> result{{}, std::vector<Real>(logits.size())};
  for (size_t row = 0; row < targets.size(); ++row) {
    const size_t first = row * static_cast<size_t>(shape.padded);
    if (targets[row] < 0) {
      result.losses.push_back(0);
      continue;
    }
    std::vector<Real> capped;
    for (int64_t i = 0; i < shape.vocab; ++i)
      capped.push_back(cap * std::tanh(logits[first + static_cast<size_t>(i)] / cap));
    const Real maximum = *std::max_element(capped.begin(), capped.end());
    Real sum = 0;
    for (const Real logit : capped) sum += std::exp(logit - maximum);
    const Real lse = maximum + std::log(sum);
    result.losses.push_back(lse - capped[static_cast<size_t>(targets[row])]);
    for (size_t i = 0; i < capped.size(); ++i) {
      const Real one_hot = static_cast<int64_t>(i) == targets[row] ? Real{1} : Real{0};
      const Real slope = 1 - (capped[i] / cap) * (capped[i] / cap);
      const Real of_capped = std::exp(capped[i] - lse) * (1 + 2 * z * lse) - one_hot;
      result.gradient[first + i] = of_capped * slope * static_cast<Real>(factor);
    }
  }
  return result;
}

// A rank's columns of the logits, with their statistics.
struct Slice {
  Operand& logits;
  int64_t first;
};

// Runs the loss over slices of the vocabulary, whose statistics come from the op, and compares it with that over the
// whole.
void check(Trial& trial, const Shape& shape, const Options& options) {
  std::vector<double> values = trial.input(options.dtype, rows, shape.padded, options.scale).values();
  // Padded columns are not part of the vocabulary, whatever they hold.
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = shape.vocab; col < shape.padded; ++col)
      values[static_cast<size_t>(row * shape.padded + col)] = 1e4;
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < rows; ++row)
    targets.push_back(row % 3 == 2 ? -1 : static_cast<int32_t>(trial.random.below(shape.vocab)));
  const auto* const device_targets = Trial::pointer<const int32_t>(trial.input_array(targets));
  StepState state;
  state.inverse_tokens = 0.25F;
  state.loss_scale.value = 32;
  const auto* const device_state = Trial::pointer<const StepState>(trial.in_out_value(state));
  std::vector<Slice> slices;
  std::vector<double> all;
  for (int64_t first = 0; first < shape.padded; first += shape.slice) {
    Operand& logits = trial.in_out(options.dtype, rows, shape.slice, 1, 3);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < shape.slice; ++col)
        logits.set(row, col, values[static_cast<size_t>(row * shape.padded + first + col)]);
    slices.push_back({logits, first});
    if (shape.slice == shape.padded) continue;
    Operand& own = trial.output(DType::f32, 3, rows);
    trial.run(CrossEntropyStatistics{.vocab_size = shape.vocab,
                                     .first_token = first,
                                     .targets = device_targets,
                                     .logits = logits.matrix(),
                                     .statistics = own.matrix(),
                                     .softcap = options.softcap});
    const std::vector<double> of_slice = own.values();
    all.insert(all.end(), of_slice.begin(), of_slice.end());
  }
  const Matrix statistics =
      all.empty() ? Matrix() : trial.input(DType::f32, 3 * std::ssize(slices), rows, all).matrix();
  const auto expected = cross_entropy(values, targets, shape, options);
  const auto plain = cross_entropy(to_real<float>(values), targets, shape, options);
  for (const Slice& slice : slices) {
    Operand& losses = trial.output(DType::f32, 1, rows);
    trial.run(CrossEntropy{.vocab_size = shape.vocab,
                           .z_loss = options.z_loss,
                           .targets = device_targets,
                           .state = device_state,
                           .logits = slice.logits.matrix(),
                           .d_logits = slice.logits.matrix(),
                           .losses = losses.matrix(),
                           .statistics = statistics,
                           .first_token = slice.first,
                           .softcap = options.softcap});
    const auto columns = [&](const std::vector<double>& whole) {
      std::vector<double> part;
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t col = 0; col < shape.slice; ++col)
          part.push_back(whole[static_cast<size_t>(row * shape.padded + slice.first + col)]);
      return part;
    };
    trial.expect_close("losses", losses, expected.losses, to_double(plain.losses), 3, 0x1p-22 * options.softcap);
    trial.expect_close("d_logits", slice.logits, columns(expected.gradient),
                       columns(rounded(to_double(plain.gradient), options.dtype)), 3, factor * 0x1p-22);
  }
}

void check_reference_gradient(Trial& trial) {
  constexpr Shape shape{5, 6, 6};
  constexpr Options options{.dtype = DType::f64, .softcap = 2.5, .scale = 2, .z_loss = 0.1};
  const std::vector<int32_t> targets{3, 0};
  const std::vector<double> logits = trial.input(DType::f32, 2, shape.padded, options.scale).values();
  const auto loss = [&](const std::vector<double>& moved) {
    double sum = 0;
    for (size_t row = 0; row < targets.size(); ++row) {
      const auto capped = [&](size_t i) { return 2.5 * std::tanh(moved[row * 6 + i] / 2.5); };
      double exponentials = 0;
      for (size_t i = 0; i < 5; ++i) exponentials += std::exp(capped(i));
      const double lse = std::log(exponentials);
      sum += lse - capped(static_cast<size_t>(targets[row])) + options.z_loss * lse * lse;
    }
    return sum * factor;
  };
  const auto expected = cross_entropy(logits, targets, shape, options);
  trial.expect_true(difference_from_numeric(loss, logits, expected.gradient) < 1e-8, "d_logits is the derivative");
}

void add_cases(Suite& suite) {
  for (const Shape& shape : shapes) {
    for (const DType dtype : compute_dtypes) {
      for (const double scale : {1.0, 40.0}) {
        const Options options{.dtype = dtype, .softcap = 30, .scale = scale};
        suite.add<CrossEntropy>(
            fmt::format("V={} slices of {} scale={} {}", shape.vocab, shape.slice, scale, dtype_name(dtype)),
            [=](Trial& t) { check(t, shape, options); });
      }
    }
  }
  suite.add<CrossEntropy>("derivative", check_reference_gradient);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_loss_softcap
