// Updates of elements have the same bits on every instruction set and GPU: each has a checksum of its outputs.
// Inputs are made of integers, so that they are the same everywhere, too.
#include <cmath>
#include <fmt/format.h>

#include "base/crc32c.h"
#include "harness.h"
#include "reference.h"
#include "update_writes.h"

namespace gptrain::ops_test::cases_update_bits {
namespace {

constexpr int64_t elements = 2000;

// Returns numbers of both signs between 2^-19 and 1, or their magnitudes.
std::vector<double> numbers(Random& random, bool positive) {
  std::vector<double> values(elements);
  for (double& value : values) {
    const int64_t magnitude = 1 + random.below(1 << 20);
    value = std::ldexp(static_cast<double>(magnitude), -20 - static_cast<int>(random.below(5)));
    if (!positive && random.below(2) == 1) value = -value;
  }
  return values;
}

template <typename Op>
void set_constants(Trial& trial, Op& op) {
  if constexpr (requires { op.beta1; }) op.beta1 = 0.9;
  if constexpr (requires { op.beta2; }) op.beta2 = 0.95;
  if constexpr (requires { op.eps; }) op.eps = 1e-8;
  if constexpr (requires { op.eps2; }) op.eps2 = 1e-3;
  if constexpr (requires { op.momentum; }) op.momentum = 0.95;
  if constexpr (requires { op.nesterov; }) op.nesterov = true;
  if constexpr (requires { op.trust; }) op.trust = 0.02;
  if constexpr (requires { op.beta2_decay; }) op.beta2_decay = -0.8;
  if constexpr (requires { op.clip_threshold; }) op.clip_threshold = 1;
  if constexpr (requires { op.weight_decay; }) op.weight_decay = 0.1;
  if constexpr (requires { op.ema; }) op.ema = 0.99;
  if constexpr (requires { op.sums; }) op.sums = trial.input(DType::f64, 1, 2, std::vector<double>{2.5, 1.25}).matrix();
  if constexpr (requires { op.counts; }) op.counts = trial.input(DType::f64, 1, 1, std::vector<double>{100}).matrix();
}

template <typename Op>
void check_bits(Trial& trial, uint32_t expected) {
  Random random(1);
  Op op;
  set_constants(trial, op);
  StepState state;
  state.updates = 3;
  state.learning_rate = 0x1.8p-6F;
  state.gradient_scale = 0.37F;
  set_segments(trial, op, {{.offset = 0, .count = elements, .decay = 1, .rate_factor = 0.7F}}, state);
  op.gradients = trial.input(DType::f32, 1, elements, numbers(random, false)).matrix();
  std::vector<Operand*> written;
  const auto add = [&](DType dtype, bool positive) {
    Operand& operand = trial.in_out(dtype, 1, elements);
    operand.set_values(numbers(random, positive));
    written.push_back(&operand);
    return operand.matrix();
  };
  op.master = add(DType::f32, false);
  for (size_t i = 0; i < Op::num_columns; ++i) op.columns[i] = add(DType::f32, true);
  trial.run(op);
  uint32_t crc = 0;
  for (const Operand* const operand : written) {
    const std::vector<float> values = Trial::array_of<float>(*operand, elements);
    crc = crc32c(values.data(), values.size() * sizeof(float), crc);
  }
  trial.expect_true(crc == expected, fmt::format("the bits' checksum is {:#010x}, not {:#010x}", crc, expected));
}

template <typename Op>
void add_case(Suite& suite, uint32_t expected) {
  suite.add<Op>("the bits of every backend", [expected](Trial& trial) { check_bits<Op>(trial, expected); });
}

void add_cases(Suite& suite) {
  add_case<Adafactor>(suite, 0xfb269d65);
  add_case<AdafactorVectors>(suite, 0xe28a9705);
  add_case<AdamWEma>(suite, 0xa7416f82);
  add_case<Lamb>(suite, 0xd6f227be);
  add_case<Lars>(suite, 0x97a25a60);
  add_case<Lion>(suite, 0x8aed4032);
  add_case<Muon>(suite, 0x2ea8f5c6);
  add_case<MuonMomentum>(suite, 0xfa890994);
  add_case<Sgd>(suite, 0x914dd422);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_update_bits
