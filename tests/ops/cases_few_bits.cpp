// Activations whose derivative is saved in a few bits (ops/few_bits.h).
#include <cmath>
#include <fmt/format.h>
#include <vector>

#include "harness.h"
#include "ops/few_bits.h"
#include "reference.h"

namespace gptrain::ops_test::cases_few_bits {
namespace {

struct Kind {
  ActivationKind kind;
  const char* name;
};
constexpr Kind kinds[] = {{ActivationKind::gelu, "gelu"}, {ActivationKind::gelu_tanh, "gelu_tanh"}};

struct Pieces {
  std::vector<double> borders, levels;

  int64_t half() const { return static_cast<int64_t>(levels.size()); }
  double level(int64_t code) const {
    const double of_magnitude = levels[static_cast<size_t>(code % half())];
    return code >= half() ? 1 - of_magnitude : of_magnitude;
  }
};
template <int bits>
Pieces pieces_of(ActivationKind kind) {
  const auto table = activation_pieces<bits>(kind);
  return {{std::begin(table.borders), std::end(table.borders)}, {std::begin(table.levels), std::end(table.levels)}};
}
Pieces pieces_of(ActivationKind kind, int bits) {
  return bits == 2 ? pieces_of<2>(kind) : bits == 3 ? pieces_of<3>(kind) : pieces_of<4>(kind);
}

// Reads bit by bit: element `col` of a row has bits [bits col, bits col + bits) of its group's integer.
int64_t code_at(const Operand& codes, int64_t row, int64_t col, int bits) {
  int64_t code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const int64_t index = col / 8 * 8 * bits + col % 8 * bits + bit;
    code |= (static_cast<int64_t>(codes.at(row, index / 8)) >> (index % 8) & 1) << bit;
  }
  return code;
}

// Checks that y has the bits of the op without codes, and that each code is that of the piece in which x + bias lies.
void check_forward(Trial& trial, const Kind& kind, int bits, int64_t rows, int64_t cols, DType dtype, bool with_bias) {
  const Operand& x = trial.input(dtype, rows, cols, 2, 3);
  const Operand& bias = trial.input(dtype, 1, cols);
  Operand& y = trial.output(dtype, rows, cols, 1);
  Operand& codes = trial.output(DType::u8, rows, code_bytes(cols, bits), 2);
  ActivationForward op{
      .kind = kind.kind, .x = x.matrix(), .bias = with_bias ? bias.matrix() : Matrix(), .y = y.matrix()};
  trial.run(op);
  const std::vector<double> plain = y.values();
  op.code_bits = bits;
  op.codes = codes.matrix();
  trial.run(op);
  trial.expect_true(y.values() == plain, "y is that without codes");
  const Pieces pieces = pieces_of(kind.kind, bits);
  int64_t wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      const double value = x.at(row, col) + (with_bias ? bias.at(0, col) : 0);
      int64_t expected = value < 0 ? pieces.half() : 0;
      bool at_border = std::abs(value) < 1e-6;
      for (const double border : pieces.borders) {
        expected += std::abs(value) > border ? 1 : 0;
        at_border = at_border || std::abs(std::abs(value) - border) < 1e-6;
      }
      wrong += !at_border && code_at(codes, row, col, bits) != expected;
    }
  }
  trial.expect_true(wrong == 0, fmt::format("{} codes are not those of their pieces", wrong));
}

// Uses random bits: all are valid codes.
void check_backward(Trial& trial, const Kind& kind, int bits, int64_t rows, int64_t cols, DType dtype) {
  std::vector<double> bytes(static_cast<size_t>(rows * code_bytes(cols, bits)));
  for (double& byte : bytes) byte = static_cast<double>(trial.random.below(256));
  const Operand& codes = trial.input(DType::u8, rows, code_bytes(cols, bits), bytes, 1);
  const Operand& dy = trial.input(dtype, rows, cols, 1, 2);
  Operand& dx = trial.output(dtype, rows, cols, 3);
  trial.run(ActivationBackward{.kind = kind.kind,
                               .x = {},
                               .bias = {},
                               .dy = dy.matrix(),
                               .dx = dx.matrix(),
                               .code_bits = bits,
                               .codes = codes.matrix()});
  const Pieces pieces = pieces_of(kind.kind, bits);
  std::vector<double> expected;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      expected.push_back(dy.at(row, col) * pieces.level(code_at(codes, row, col, bits)));
  trial.expect_near("dx", dx, expected, 1e-6);
}

// Checks that forward and backward together give the exact derivative, up to the error of a piecewise constant one: its
// mean over a normal distribution is within 3% of the exact one, and it is nowhere off by more than a piece's height.
void check_derivative(Trial& trial, const Kind& kind, int bits) {
  constexpr int64_t cols = 4096;
  const Operand& x = trial.input(DType::f32, 1, cols, 1.5);
  Operand& y = trial.output(DType::f32, 1, cols);
  Operand& codes = trial.in_out(DType::u8, 1, code_bytes(cols, bits));
  const Operand& ones = trial.input(DType::f32, 1, cols, std::vector<double>(cols, 1.0));
  Operand& exact = trial.output(DType::f32, 1, cols);
  Operand& coded = trial.output(DType::f32, 1, cols);
  trial.run(ActivationForward{
      .kind = kind.kind, .x = x.matrix(), .bias = {}, .y = y.matrix(), .code_bits = bits, .codes = codes.matrix()});
  trial.run(
      ActivationBackward{.kind = kind.kind, .x = x.matrix(), .bias = {}, .dy = ones.matrix(), .dx = exact.matrix()});
  trial.run(ActivationBackward{.kind = kind.kind,
                               .x = {},
                               .bias = {},
                               .dy = ones.matrix(),
                               .dx = coded.matrix(),
                               .code_bits = bits,
                               .codes = codes.matrix()});
  double sum = 0, sum_exact = 0, furthest = 0;
  for (int64_t i = 0; i < cols; ++i) {
    sum += coded.at(0, i);
    sum_exact += exact.at(0, i);
    furthest = std::max(furthest, std::abs(coded.at(0, i) - exact.at(0, i)));
  }
  trial.expect_true(std::abs(sum - sum_exact) < 0.03 * cols,
                    fmt::format("means {} and {}", sum / cols, sum_exact / cols));
  const double most = bits == 2 ? 0.18 : bits == 3 ? 0.13 : 0.07;
  trial.expect_true(furthest < most, fmt::format("{} off, at most {}", furthest, most));
}

void check_rejections(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 2, 16);
  Operand& y = trial.output(DType::f32, 2, 16);
  Operand& codes = trial.output(DType::u8, 2, 6);
  const auto forward = [&](ActivationKind kind, int bits, const Matrix& of) {
    return ActivationForward{
        .kind = kind, .x = x.matrix(), .bias = {}, .y = y.matrix(), .code_bits = bits, .codes = of};
  };
  trial.expect_rejected(forward(ActivationKind::gelu, 2, codes.matrix()), "codes of another width");
  trial.expect_rejected(forward(ActivationKind::gelu, 5, codes.matrix()), "five bits");
  trial.expect_rejected(forward(ActivationKind::gelu, 0, codes.matrix()), "codes without their width");
  trial.expect_rejected(forward(ActivationKind::gelu, 3, {}), "a width without codes");
  ActivationBackward backward{.kind = ActivationKind::gelu,
                              .x = x.matrix(),
                              .bias = {},
                              .dy = x.matrix(),
                              .dx = y.matrix(),
                              .code_bits = 3,
                              .codes = codes.matrix()};
  trial.expect_rejected(backward, "x beside codes");
  const Operand& wide = trial.input(DType::f32, 2, 32);
  trial.expect_rejected(ActivationForward{.kind = ActivationKind::swiglu,
                                          .x = wide.matrix(),
                                          .bias = {},
                                          .y = y.matrix(),
                                          .code_bits = 3,
                                          .codes = codes.matrix()},
                        "codes of swiglu");
}

void add_benches(Suite& suite, const Kind& kind, DType dtype) {
  constexpr int64_t cols = 3072;
  const int64_t rows = suite.bench_rows(dtype, 8192, 40960);
  for (const int bits : {2, 3, 4}) {
    const std::string name = fmt::format("{} {} bits N={} f=3072 bias C={}", kind.name, bits, rows, dtype_name(dtype));
    suite.add_bench<ActivationForward>(name, [=](Trial& t) {
      t.time(ActivationForward{.kind = kind.kind,
                               .x = t.input(dtype, rows, cols).matrix(),
                               .bias = t.input(dtype, 1, cols).matrix(),
                               .y = t.output(dtype, rows, cols).matrix(),
                               .code_bits = bits,
                               .codes = t.output(DType::u8, rows, code_bytes(cols, bits)).matrix()});
    });
    suite.add_bench<ActivationBackward>(name, [=](Trial& t) {
      t.time(ActivationBackward{.kind = kind.kind,
                                .x = {},
                                .bias = {},
                                .dy = t.input(dtype, rows, cols).matrix(),
                                .dx = t.output(dtype, rows, cols).matrix(),
                                .code_bits = bits,
                                .codes = t.in_out(DType::u8, rows, code_bytes(cols, bits)).matrix()});
    });
  }
}

void add_cases(Suite& suite) {
  for (const Kind& kind : kinds) {
    for (const DType dtype : compute_dtypes) {
      for (const int bits : {2, 3, 4}) {
        for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 31}, {13, 64}, {2, 1027}}) {
          if (dtype == DType::f16 && rows != 5 && rows != 13) continue;
          const std::string name =
              fmt::format("{} {} bits N={} f={} C={}", kind.name, bits, rows, cols, dtype_name(dtype));
          const auto n = rows, f = cols;
          for (const bool bias : {false, true})
            suite.add<ActivationForward>(name + (bias ? " bias" : ""),
                                         [=](Trial& t) { check_forward(t, kind, bits, n, f, dtype, bias); });
          suite.add<ActivationBackward>(name, [=](Trial& t) { check_backward(t, kind, bits, n, f, dtype); });
        }
      }
      add_benches(suite, kind, dtype);
    }
    for (const int bits : {2, 3, 4})
      suite.add<ActivationBackward>(fmt::format("derivative of {} in {} bits", kind.name, bits),
                                    [=](Trial& t) { check_derivative(t, kind, bits); });
  }
  suite.add<ActivationForward>("rejections of codes", check_rejections);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_few_bits
