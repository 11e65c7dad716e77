// Gradients in bf16: sums over micro-batches with stochastic rounding, and ops that read such gradients.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <type_traits>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_keep_gradients {
namespace {

// Rounds |x|: the bf16 number below it, plus one unit if adding 16 random bits carries.
double stochastically_rounded(double x, uint32_t word) {
  if (x == 0) return 0;
  const double unit = std::ldexp(1.0, std::ilogb(x) - 7);
  const double below = std::floor(std::abs(x) / unit);
  const double cut = std::floor((std::abs(x) / unit - below) * 65536);
  return std::copysign((below + (cut + (word >> 16) >= 65536 ? 1 : 0)) * unit, x);
}

uint32_t word_of(const KeptSegment& segment, int64_t i, int64_t updates, uint32_t draw) {
  const IndexMap& map = segment.map;
  const int64_t row = (map.first + i) / map.cols, col = (map.first + i) % map.cols;
  const auto element = static_cast<uint64_t>(map.origin + row * map.stride + col);
  return reference_philox({static_cast<uint32_t>(element / 4), static_cast<uint32_t>(element / 4 >> 32),
                           static_cast<uint32_t>(updates), draw},
                          {segment.key.k0, segment.key.k1})[element % 4];
}

KeepGradients make_op(Trial& trial, const std::vector<KeptSegment>& segments, int64_t updates) {
  KeepGradients op;
  set_segments(trial, op, segments, state_after(updates));
  return op;
}

// Checks sums in f32 of bf16 and f32, which equal those of f64, rounded. `cols` of `stride` columns are the box of the
// largest segment.
void check_sums(Trial& trial, int64_t size, int64_t cols, int64_t stride, int64_t first, bool accumulate) {
  // The last one passes 2^34 elements, where the counter's low half wraps around.
  const std::vector<KeptSegment> segments{
      {.offset = 0, .count = 1, .key = {1, 2}, .map = {.origin = 5, .first = 0, .cols = 1, .stride = 1}},
      {.offset = 64, .count = 13, .key = {3, 4}, .map = {.origin = 3, .first = 7, .cols = 1, .stride = 1}},
      {.offset = 128,
       .count = size,
       .key = {5, 6},
       .map = {.origin = 3 * stride + 8, .first = first, .cols = cols, .stride = stride}},
      {.offset = size + 192,
       .count = 31,
       .key = {5, 6},
       .map = {.origin = (int64_t{1} << 34) - 16, .first = 2, .cols = 8, .stride = 8}}};
  constexpr int64_t updates = (int64_t{1} << 31) + 5;
  KeepGradients op = make_op(trial, segments, updates);
  const Operand& gradients = trial.input(DType::f32, 1, size + 256);
  Operand& sums = trial.in_out(DType::bf16, 1, size + 256, 3);
  op.gradients = gradients.matrix();
  op.sums = sums.matrix();
  op.accumulate = accumulate;
  op.draw = (1U << 31) + 3;
  std::vector<double> expected = sums.values();
  for (const KeptSegment& segment : segments) {
    for (int64_t i = 0; i < segment.count; ++i) {
      double& sum = expected[static_cast<size_t>(segment.offset + i)];
      sum = rounded((accumulate ? sum : 0) + gradients.at(0, segment.offset + i), DType::f32);
      sum = stochastically_rounded(sum, word_of(segment, i, updates, op.draw));
    }
  }
  trial.run(op);
  trial.expect_equal("kept", sums, expected);
}

// Checks 64 micro-batches that each add an eighth of the last place of the sum, 1: rounding to nearest would lose them
// all. The number of roundings up is binomial. Means over 100,000 elements; one in two million keys would be off by
// more than five standard deviations in one of the two.
void check_unbiased(Trial& trial) {
  constexpr int64_t elements = 100'000;
  constexpr uint32_t micro_batches = 64;
  constexpr double unit = 0x1p-7, share = 0.125;
  const std::vector<KeptSegment> segments{{.offset = 0, .count = elements, .key = {7, 8}, .map = {}}};
  KeepGradients op = make_op(trial, segments, 12);
  op.gradients = trial.input(DType::f32, 1, elements, std::vector<double>(elements, share * unit)).matrix();
  Operand& sums = trial.in_out(DType::bf16, 1, elements);
  sums.set_values(std::vector<double>(elements, 1));
  op.sums = sums.matrix();
  op.accumulate = true;
  for (op.draw = 0; op.draw < micro_batches; ++op.draw) trial.run(op);
  double sum = 0, squares = 0;
  for (const double value : sums.values()) {
    const double ups = (value - 1) / unit;
    sum += ups;
    squares += ups * ups;
  }
  const double mean = sum / elements, variance = squares / elements - mean * mean;
  const double expected = micro_batches * share, expected_variance = expected * (1 - share);
  trial.expect_true(std::abs(mean - expected) < 5 * std::sqrt(expected_variance / elements),
                    fmt::format("{} roundings up, not {}", mean, expected));
  // With one draw for all micro-batches it would be 64 times as large.
  trial.expect_true(std::abs(variance - expected_variance) < 5 * expected_variance * std::sqrt(2.0 / elements) * 1.1,
                    fmt::format("their variance is {}, not {}", variance, expected_variance));
}

void check_not_finite(Trial& trial) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::vector<KeptSegment> segments{{.offset = 0, .count = 4, .key = {7, 8}, .map = {}}};
  KeepGradients op = make_op(trial, segments, 1);
  op.gradients = trial.input(DType::f32, 1, 4, {infinity, -infinity, std::nan(""), 1}).matrix();
  Operand& sums = trial.in_out(DType::bf16, 1, 4);
  op.sums = sums.matrix();
  trial.run(op);
  trial.expect_true(
      sums.at(0, 0) == infinity && sums.at(0, 1) == -infinity && std::isnan(sums.at(0, 2)) && sums.at(0, 3) == 1,
      "what is not finite stays so");
  op.gradients = trial.input(DType::f32, 1, 4, {1, 1, 1, infinity}).matrix();
  op.accumulate = true;
  trial.run(op);
  trial.expect_true(!std::isfinite(sums.at(0, 0)) && !std::isfinite(sums.at(0, 1)) && !std::isfinite(sums.at(0, 2)) &&
                        !std::isfinite(sums.at(0, 3)),
                    "sums stay not finite");
}

const StepState* state_of(Trial& trial, bool skips) {
  return Trial::pointer<const StepState>(trial.in_out_value(state_after(3, skips)));
}

// Checks that errors are kept as they are, and that a skipped step leaves the earlier ones.
void check_residual(Trial& trial, int64_t n, bool skips) {
  const Operand& errors = trial.input(DType::f32, 1, n);
  Operand& sums = trial.in_out(DType::f32, 1, n);
  const std::vector<double> before = sums.values();
  trial.run(KeepResidual{.state = state_of(trial, skips), .errors = errors.matrix(), .residual = sums.matrix()});
  trial.expect_equal("kept", sums, skips ? before : errors.values());
}

void check_residual_rejections(Trial& trial) {
  const StepState* const state = state_of(trial, false);
  const Operand& errors = trial.input(DType::f32, 1, 8);
  trial.expect_rejected(KeepResidual{state, errors.matrix(), trial.in_out(DType::f32, 1, 7).matrix()},
                        "another length");
  trial.expect_rejected(KeepResidual{state, errors.matrix(), trial.in_out(DType::bf16, 1, 8).matrix()}, "bf16");
}

void check_rejections(Trial& trial) {
  KeepGradients op = make_op(trial, {{.offset = 0, .count = 8, .key = {7, 8}, .map = {}}}, 1);
  op.gradients = trial.input(DType::f32, 1, 8).matrix();
  op.sums = trial.in_out(DType::f32, 1, 8).matrix();
  trial.expect_rejected(op, "sums in f32");
  op.sums = trial.in_out(DType::bf16, 1, 7).matrix();
  trial.expect_rejected(op, "another length");
  op.sums = trial.in_out(DType::bf16, 1, 8).matrix();
  op.gradients = trial.input(DType::bf16, 1, 8).matrix();
  trial.expect_rejected(op, "gradients of a micro-batch in bf16");
}

// Number of elements of the updates below, a multiple of state_block.
constexpr int64_t updated_elements = 41 * state_block;

// Operands of an update, without gradients.
struct Updated {
  std::vector<Operand*> operands;

  Updated(Trial& trial, bool masters, ElementUpdate& op, size_t num_columns) {
    operands.push_back(&trial.in_out(masters ? DType::f32 : DType::bf16, 1, updated_elements));
    (masters ? op.master : op.weights) = operands.back()->matrix();
    for (size_t i = 0; i < num_columns; ++i) {
      operands.push_back(&trial.in_out(DType::f32, 1, updated_elements, 0));
      op.columns.at(i) = operands.back()->matrix();
    }
  }
  Updated(Trial& trial, bool masters, AdamW8bit& op) : Updated(trial, masters, op, 0) {
    for (size_t i = 0; i < op.scales.size(); ++i) {
      operands.push_back(&trial.in_out_array(std::vector<uint8_t>(updated_elements, i == 0 ? 200 : 100)));
      op.columns[i] = operands.back()->matrix();
      operands.push_back(&trial.in_out(DType::f32, 1, updated_elements / state_block, 0));
      op.scales[i] = operands.back()->matrix();
    }
  }
};

// Checks that gradients that are bf16 numbers give the same bits in either dtype.
template <typename Op>
void check_narrow_gradients(Trial& trial, const Op& constants, bool masters) {
  const std::vector<UpdateSegment> segments{{.offset = 0,
                                             .count = 999,
                                             .decay = 1,
                                             .key = {1, 2},
                                             .map = {.origin = 8, .first = 4, .cols = 12, .stride = 40}},
                                            {.offset = 1024,
                                             .count = updated_elements - 1024 - 7,
                                             .decay = 0,
                                             .key = {3, 4},
                                             .map = {.origin = 4, .first = 0, .cols = 1, .stride = 1}}};
  const Operand& narrow = trial.input(DType::bf16, 1, updated_elements);
  const auto updated_by = [&](const Matrix& gradients) {
    Op op = constants;
    set_segments(trial, op, segments, state_after(3));
    op.gradients = gradients;
    const Updated updated = [&] {
      if constexpr (std::is_same_v<Op, AdamW8bit>) {
        return Updated(trial, masters, op);
      } else {
        return Updated(trial, masters, op, Op::num_columns);
      }
    }();
    std::vector<double> weights(updated_elements);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = 1 + static_cast<double>(i % 100) / 128;
    updated.operands.front()->set_values(weights);
    trial.run(op);
    return updated.operands;
  };
  const std::vector<Operand*> of_wide =
      updated_by(trial.input(DType::f32, 1, updated_elements, narrow.values()).matrix());
  const std::vector<Operand*> of_narrow = updated_by(narrow.matrix());
  for (size_t i = 0; i < of_wide.size(); ++i) {
    const std::string name = fmt::format("operand {}", i);
    if (of_wide[i]->dtype() == DType::u8) {
      trial.expect_true(Trial::array_of<uint8_t>(*of_wide[i], updated_elements) ==
                            Trial::array_of<uint8_t>(*of_narrow[i], updated_elements),
                        name);
    } else {
      trial.expect_equal(name, *of_narrow[i], of_wide[i]->values());
    }
  }
  double moved = 0;
  for (int64_t i = 0; i < 999; ++i)
    moved += std::abs(of_wide.front()->at(0, i) - (1 + static_cast<double>(i % 100) / 128));
  trial.expect_true(moved > 0, "weights move");
}

void check_narrow_norm(Trial& trial) {
  constexpr int64_t elements = 70'001;
  const std::vector<SquaredNorm::Segment> segments{{0, 20'003, 1}, {20'100, 49'000, 0}};
  const Operand& table = trial.input_array(segments);
  const Operand& narrow = trial.input(DType::bf16, 1, elements);
  const auto norm_of = [&](const Matrix& gradients) -> Operand& {
    Operand& partials = trial.output(DType::f64, 1, 2);
    trial.run(SquaredNorm{.segments = Trial::pointer<const SquaredNorm::Segment>(table),
                          .num_segments = std::ssize(segments),
                          .gradients = gradients,
                          .partials = partials.matrix()});
    return partials;
  };
  const Operand& of_wide = norm_of(trial.input(DType::f32, 1, elements, narrow.values()).matrix());
  // Sums of as many squares, in f64 and in another order.
  trial.expect_near("partials", norm_of(narrow.matrix()), of_wide.values(), elements * 0x1p-53 * of_wide.at(0, 0));
}

void check_gradients_of_others(Trial& trial) {
  AdamWEma op{};
  op.state = Trial::pointer<const StepState>(trial.in_out_value(state_after(3)));
  const Updated updated(trial, false, op, AdamWEma::num_columns);
  op.gradients = trial.input(DType::bf16, 1, updated_elements).matrix();
  trial.expect_rejected(op, "an average of weights beside gradients in bf16");
}

void add_keeping_cases(Suite& suite) {
  struct Box {
    int64_t size, cols, stride, first;
  };
  // Whole rows, part of each row in whole packs, and without whole packs.
  for (const Box& box : {Box{.size = 1000, .cols = 40, .stride = 40, .first = 0},
                         {.size = 100003, .cols = 40, .stride = 40, .first = 12},
                         {.size = 50001, .cols = 12, .stride = 40, .first = 4},
                         {.size = 20011, .cols = 7, .stride = 9, .first = 3}}) {
    for (const bool accumulate : {false, true}) {
      suite.add<KeepGradients>(
          fmt::format("{} elements of {} of {} columns{}", box.size, box.cols, box.stride, accumulate ? " adding" : ""),
          [=](Trial& t) { check_sums(t, box.size, box.cols, box.stride, box.first, accumulate); });
    }
  }
  suite.add<KeepGradients>("unbiased", check_unbiased);
  suite.add<KeepGradients>("not finite", check_not_finite);
  suite.add<KeepGradients>("rejections", check_rejections);
  for (const int64_t n : {1, 13, 1024, 70'001}) {
    for (const bool skips : {false, true})
      suite.add<KeepResidual>(fmt::format("{} elements{}", n, skips ? ", skipped" : ""),
                              [=](Trial& t) { check_residual(t, n, skips); });
  }
  suite.add<KeepResidual>("rejections", check_residual_rejections);
  suite.add_bench<KeepResidual>("40 M elements", [](Trial& t) {
    constexpr int64_t elements = 40'000'000;
    t.time(KeepResidual{.state = state_of(t, false),
                        .errors = t.input(DType::f32, 1, elements).matrix(),
                        .residual = t.output(DType::f32, 1, elements).matrix()});
  });
  for (const bool masters : {false, true}) {
    const std::string name = masters ? "bf16 gradients, masters" : "bf16 gradients";
    AdamW adamw{};
    adamw.beta1 = 0.9;
    adamw.beta2 = 0.95;
    adamw.eps = 1e-8;
    adamw.weight_decay = 0.1;
    AdamW8bit coded{adamw, {}};
    Lion lion{};
    lion.beta1 = 0.9;
    lion.beta2 = 0.99;
    Sgd sgd{};
    sgd.momentum = 0.9;
    suite.add<AdamW>(name, [=](Trial& t) { check_narrow_gradients(t, adamw, masters); });
    suite.add<AdamW8bit>(name, [=](Trial& t) { check_narrow_gradients(t, coded, masters); });
    suite.add<Lion>(name, [=](Trial& t) { check_narrow_gradients(t, lion, masters); });
    suite.add<Sgd>(name, [=](Trial& t) { check_narrow_gradients(t, sgd, masters); });
  }
  suite.add<AdamWEma>("bf16 gradients, rejection", check_gradients_of_others);
  suite.add<SquaredNorm>("bf16 gradients", check_narrow_norm);
  suite.add_bench<KeepGradients>("40 M elements, adding", [](Trial& t) {
    constexpr int64_t elements = 40'000'000;
    const std::vector<double> zeros(static_cast<size_t>(elements));
    KeepGradients op = make_op(t, {{.offset = 0, .count = elements, .key = {7, 8}, .map = {}}}, 1);
    op.gradients = t.input(DType::f32, 1, elements, zeros).matrix();
    op.sums = t.input(DType::bf16, 1, elements, zeros).matrix();
    op.accumulate = true;
    t.time(op);
  });
}

const Registration keeping(add_keeping_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_keep_gradients
