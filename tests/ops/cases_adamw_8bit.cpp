// AdamW with 8-bit moments: compared with float64, block by block.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <type_traits>

#include "base/dynamic_map.h"
#include "base/philox.h"
#include "reference.h"
#include "update_writes.h"

namespace gptrain::ops_test::cases_adamw_8bit {
namespace {

constexpr int64_t blocks_without_end = 4;

// Whole blocks, two parts of a tensor that share one, a gap, and part of a box whose rows are not contiguous.
std::vector<UpdateSegment> segments_of(int64_t whole) {
  const IndexMap rows{.origin = 1000, .first = 7, .cols = 33, .stride = 90};
  const IndexMap one{.origin = 5, .first = 0, .cols = 1, .stride = 1};
  const int64_t end = whole * state_block;
  return {{.offset = 0, .count = end, .decay = 1, .key = {1, 2}, .map = one},
          {.offset = end, .count = 190, .decay = 0, .rate_factor = 0.25F, .key = {3, 4}, .map = rows},
          {.offset = end + 190, .count = 301, .decay = 1, .rate_factor = 0.25F, .key = {3, 4}, .map = one},
          {.offset = end + 512, .count = 509, .decay = 1, .key = {7, 8}, .map = rows}};
}

struct Buffers {
  const Operand& gradients;
  Operand& weight;  // input of the update: master weights in f32, or weights in bf16
  Operand& ema;
  Operand& m_codes;
  Operand& v_codes;
  Operand& m_scales;
  Operand& v_scales;
};

template <typename Real>
struct Values {
  std::vector<Real> weight, ema, m, v;
};

template <bool has_sign>
std::vector<double> decoded(const std::vector<uint8_t>& codes, const Operand& scales) {
  std::vector<double> values;
  for (size_t i = 0; i < codes.size(); ++i)
    values.push_back(static_cast<double>(DynamicMap<has_sign>::value(codes[i])) *
                     scales.at(0, static_cast<int64_t>(i) / state_block));
  return values;
}

template <typename Real>
Values<Real> reference(const AdamW8bitEma& op, const std::vector<UpdateSegment>& segments, const StepState& state,
                       const Buffers& buffers, int64_t elements) {
  const auto codes = [elements](const Operand& operand) { return Trial::array_of<uint8_t>(operand, elements); };
  const auto m_before = to_real<Real>(decoded<true>(codes(buffers.m_codes), buffers.m_scales));
  const auto v_before = to_real<Real>(decoded<false>(codes(buffers.v_codes), buffers.v_scales));
  const auto size = static_cast<size_t>(elements);
  Values<Real> values{.weight = to_real<Real>(buffers.weight.values()),
                      .ema = to_real<Real>(buffers.ema.values()),
                      .m = std::vector<Real>(size),
                      .v = std::vector<Real>(size)};
  const auto power = [&state](double beta) {
    return std::pow(static_cast<Real>(beta), static_cast<Real>(state.updates));
  };
  const Real share = (1 - static_cast<Real>(op.ema)) / (1 - power(op.ema));
  for (const UpdateSegment& segment : segments) {
    const auto lr = static_cast<Real>(state.learning_rate);
    const Real rate = lr * static_cast<Real>(segment.rate_factor);
    const Real decay = segment.decay != 0 ? lr * static_cast<Real>(op.weight_decay) : Real{0};
    for (int64_t i = segment.offset; i < segment.offset + segment.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const Real g = static_cast<Real>(buffers.gradients.at(0, i)) * static_cast<Real>(state.gradient_scale);
      Real &w = values.weight[at], &m = values.m[at], &v = values.v[at];
      m = static_cast<Real>(op.beta1) * m_before[at] + static_cast<Real>(1 - op.beta1) * g;
      v = static_cast<Real>(op.beta2) * v_before[at] + static_cast<Real>(1 - op.beta2) * g * g;
      const Real root = std::sqrt(v / (1 - power(op.beta2)));
      w -= rate * (m / (1 - power(op.beta1)) / (root + static_cast<Real>(op.eps))) + decay * w;
      values.ema[at] += share * (w - values.ema[at]);
    }
  }
  return values;
}

// Checks that the scale of each block is its largest magnitude, and that each element has the nearest code, or one that
// is equally near up to rounding.
template <bool has_sign>
void expect_coded(Trial& trial, const std::string& what, const std::vector<double>& exact, const Operand& codes,
                  const Operand& scales) {
  using Map = DynamicMap<has_sign>;
  const std::vector<uint8_t> coded = Trial::array_of<uint8_t>(codes, std::ssize(exact));
  int64_t wrong_scales = 0, wrong_codes = 0;
  for (size_t begin = 0; begin < exact.size(); begin += state_block) {
    double largest = 0;
    for (size_t i = begin; i < begin + state_block; ++i) largest = std::max(largest, std::abs(exact[i]));
    if (largest < static_cast<double>(least_block_scale)) largest = 0;
    const double scale = scales.at(0, static_cast<int64_t>(begin) / state_block);
    wrong_scales += std::abs(scale - largest) > 4e-7 * largest ? 1 : 0;
    for (size_t i = begin; i < begin + state_block; ++i) {
      const double x = largest == 0 ? 0 : std::abs(exact[i]) / largest;
      const bool below = has_sign && coded[i] < zero_code;
      const int n = !has_sign ? coded[i] : below ? zero_code - coded[i] : coded[i] - zero_code;
      const int most = below ? Map::most - 1 : Map::most;
      const auto middle = [](int upper) {
        return (static_cast<double>(Map::magnitude(upper - 1)) + static_cast<double>(Map::magnitude(upper))) / 2;
      };
      const double slack = 4e-5 * x + (has_sign ? 3e-7 : 0);
      const bool above_zero = !has_sign && n == 1 && exact[i] > 0;  // never the code of zero
      const bool near = (n == 0 || above_zero || x >= middle(n) - slack) && (n == most || x <= middle(n + 1) + slack) &&
                        (has_sign || n > 0 || exact[i] == 0);
      const bool sign = !has_sign || n == 0 || below == (exact[i] < 0) || x < 1e-6;
      wrong_codes += near && sign ? 0 : 1;
    }
  }
  trial.expect_true(wrong_scales == 0, fmt::format("{} scales of {} are wrong", wrong_scales, what));
  trial.expect_true(wrong_codes == 0, fmt::format("{} codes of {} are wrong", wrong_codes, what));
}

// Checks that elements are rounded by random bits of their position in the tensor.
void expect_rounded(Trial& trial, const Operand& weights, const std::vector<double>& exact,
                    const std::vector<UpdateSegment>& segments, const StepState& state) {
  int64_t other = 0, all = 0;
  for (const UpdateSegment& segment : segments) {
    for (int64_t i = 0; i < segment.count; ++i) {
      const auto index = static_cast<uint64_t>(segment.map.index(i));
      const auto words = philox(segment.key, {static_cast<uint32_t>(index / 4), static_cast<uint32_t>(index / 4 >> 32),
                                              static_cast<uint32_t>(state.updates), 0});
      const auto wanted = static_cast<float>(exact[static_cast<size_t>(segment.offset + i)]);
      const float rounded = to_float(stochastic_bf16(wanted, words[index % 4]));
      other += static_cast<double>(rounded) != weights.at(0, segment.offset + i) ? 1 : 0;
      ++all;
    }
  }
  // If the f32 sum differs from the reference, a random word may take it to the other neighbour.
  trial.expect_true(other * 200 <= all, fmt::format("{} of {} weights are rounded otherwise", other, all));
}

template <typename Tested>
void check(Trial& trial, int64_t whole, Writes writes, DType dtype, bool skip) {
  const std::vector<UpdateSegment> segments = segments_of(whole);
  const int64_t blocks = whole + blocks_without_end, elements = blocks * state_block;
  const bool masters = writes != Writes::weights;
  const StepState state = state_after(3, skip);
  std::vector<uint8_t> random_codes[2];
  for (auto& codes : random_codes) {
    for (int64_t i = 0; i < elements; ++i) codes.push_back(static_cast<uint8_t>(trial.random.next() % 256));
  }
  std::vector<double> gradients = trial.input(DType::f32, 1, elements, 0.1).values();
  for (size_t i = 0; i < gradients.size(); i += 5) gradients[i] = i % 2 == 0 ? 0 : 1e-7;
  const Buffers buffers{.gradients = trial.input(DType::f32, 1, elements, gradients),
                        .weight = trial.in_out(masters ? DType::f32 : DType::bf16, 1, elements),
                        .ema = trial.in_out(DType::f32, 1, elements),
                        .m_codes = trial.in_out_array(random_codes[0]),
                        .v_codes = trial.in_out_array(random_codes[1]),
                        .m_scales = trial.in_out(DType::f32, 1, blocks, 0.1),
                        .v_scales = trial.in_out(DType::f32, 1, blocks, 0.1)};
  for (int64_t block = 0; block < blocks; ++block) {
    // Includes zero blocks, and moments far below and above the gradient.
    const double size = block % 3 == 1 ? 0 : std::pow(10.0, static_cast<double>(block % 5) - 3);
    buffers.m_scales.set(0, block, size * std::abs(buffers.m_scales.at(0, block)));
    buffers.v_scales.set(0, block, size * size * std::abs(buffers.v_scales.at(0, block)));
  }
  Operand& weights = trial.in_out(dtype, 1, elements);
  AdamW8bitEma op{};
  op.beta1 = 0.9;
  op.beta2 = 0.97;
  op.eps = 0.05;
  op.weight_decay = 0.1;
  op.ema = 0.8;
  set_segments(trial, op, segments, state);
  op.gradients = buffers.gradients.matrix();
  op.columns = {buffers.m_codes.matrix(), buffers.v_codes.matrix(), buffers.ema.matrix()};
  op.scales = {buffers.m_scales.matrix(), buffers.v_scales.matrix()};
  if (masters) op.master = buffers.weight.matrix();
  if (writes == Writes::masters_and_weights) op.weights = weights.matrix();
  if (writes == Writes::weights) op.weights = buffers.weight.matrix();

  const std::vector<UpdateSegment> changed = skip ? std::vector<UpdateSegment>{} : segments;
  const auto expected = reference<double>(op, changed, state, buffers, elements);
  const auto plain = reference<float>(op, changed, state, buffers, elements);
  std::vector<double> rounded_weights = weights.values();
  const std::vector<double> ema = buffers.ema.values(), m_scales = buffers.m_scales.values();
  trial.run(static_cast<const Tested&>(op));
  if (std::is_same_v<Tested, AdamW8bitEma>) {
    trial.expect_close("ema", buffers.ema, expected.ema, to_double(plain.ema), 3, 0x1p-24);
  } else {
    trial.expect_equal("ema", buffers.ema, ema);
  }
  if (skip) {
    trial.expect_equal("scales", buffers.m_scales, m_scales);
    trial.expect_true(Trial::array_of<uint8_t>(buffers.m_codes, elements) == random_codes[0] &&
                          Trial::array_of<uint8_t>(buffers.v_codes, elements) == random_codes[1],
                      "codes stay");
  } else {
    expect_coded<true>(trial, "m", expected.m, buffers.m_codes, buffers.m_scales);
    expect_coded<false>(trial, "v", expected.v, buffers.v_codes, buffers.v_scales);
  }
  if (!masters) return expect_rounded(trial, buffers.weight, expected.weight, changed, state);
  trial.expect_close("master", buffers.weight, expected.weight, to_double(plain.weight), 3, 0x1p-24);
  for (const UpdateSegment& segment : changed) {
    for (int64_t i = segment.offset; writes == Writes::masters_and_weights && i < segment.offset + segment.count; ++i)
      rounded_weights[static_cast<size_t>(i)] = rounded(buffers.weight.at(0, i), dtype);
  }
  trial.expect_equal("weights", weights, rounded_weights);
}

// Checks that a caller's mistakes are refused, on one block.
void check_operands(Trial& trial) {
  AdamW8bit op{};
  op.gradients = trial.input(DType::f32, 1, 300).matrix();
  op.master = trial.in_out(DType::f32, 1, 300).matrix();
  trial.expect_rejected(op, "the range does not end with a block");
  op.gradients.cols = op.master.cols = 256;
  op.columns[0] = op.master;
  trial.expect_rejected(op, "codes is f32, must be u8");
}

template <typename Op>
void time_update(Trial& trial, bool narrow) {
  constexpr int64_t elements = 40'000'000 / state_block * state_block;
  Op op{};
  op.beta1 = 0.9;
  op.beta2 = 0.95;
  op.eps = 1e-8;
  StepState state;
  state.updates = 1;
  state.gradient_scale = 1;
  state.learning_rate = 1e-4F;
  set_segments(trial, op, {{0, elements, 1}}, state);
  op.gradients = trial.input(DType::f32, 1, elements).matrix();
  op.master = trial.in_out(DType::f32, 1, elements).matrix();
  if (narrow) op.weights = trial.output(DType::bf16, 1, elements).matrix();
  for (size_t i = 0; i < 2; ++i) {
    op.columns[i] = trial.in_out_array(std::vector<uint8_t>(static_cast<size_t>(elements), 130)).matrix();
    op.scales[i] = trial.in_out(DType::f32, 1, elements / state_block, 0).matrix();
  }
  if constexpr (Op::num_columns > 2) op.columns[2] = trial.in_out(DType::f32, 1, elements, 0).matrix();
  trial.time(op);
}

template <typename Tested>
void add_cases(Suite& suite) {
  const auto add = [&](int64_t whole, Writes writes, DType dtype, const std::string& name, bool skip = false) {
    suite.add<Tested>(name, [=](Trial& t) { check<Tested>(t, whole, writes, dtype, skip); });
  };
  for (const int64_t whole : {1, 70}) {
    const std::string name = fmt::format("{} blocks", whole + blocks_without_end);
    add(whole, Writes::masters, DType::f32, name);
    add(whole, Writes::masters_and_weights, DType::bf16, name + ", bf16 weights");
    add(whole, Writes::weights, DType::bf16, name + ", stochastic rounding");
  }
  add(1, Writes::masters_and_weights, DType::f16, "5 blocks, f16 weights");
  add(1, Writes::masters_and_weights, DType::bf16, "skipped", true);
}

void add_adamw_8bit_cases(Suite& suite) {
  add_cases<AdamW8bit>(suite);
  add_cases<AdamW8bitEma>(suite);
  suite.add<AdamW8bit>("operands", check_operands);
  suite.add_bench<AdamW8bit>("40 M elements", [](Trial& t) { time_update<AdamW8bit>(t, false); });
  suite.add_bench<AdamW8bit>("40 M elements, bf16 weights", [](Trial& t) { time_update<AdamW8bit>(t, true); });
  suite.add_bench<AdamW8bitEma>("40 M elements, bf16 weights", [](Trial& t) { time_update<AdamW8bitEma>(t, true); });
}

const Registration adamw_8bit(add_adamw_8bit_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_adamw_8bit
