#include <cmath>
#include <fmt/format.h>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_embedding {
namespace {

struct Shape {
  int64_t batch, tokens, cols, vocab;
};
constexpr Shape shapes[] = {
    {.batch = 1, .tokens = 1, .cols = 1, .vocab = 1},     {.batch = 1, .tokens = 3, .cols = 7, .vocab = 5},
    {.batch = 2, .tokens = 5, .cols = 31, .vocab = 3},    {.batch = 3, .tokens = 7, .cols = 65, .vocab = 200},
    {.batch = 2, .tokens = 13, .cols = 260, .vocab = 17}, {.batch = 1, .tokens = 2, .cols = 1030, .vocab = 2},
    {.batch = 2, .tokens = 9, .cols = 48, .vocab = 40},   {.batch = 1, .tokens = 11, .cols = 64, .vocab = 9}};
// A GPU sorts tiles of 512 tokens, merges 16 sorted runs at a time, and adds a token's rows in pieces of up to 128.
constexpr Shape long_shapes[] = {{.batch = 1, .tokens = 700, .cols = 16, .vocab = 2},
                                 {.batch = 3, .tokens = 700, .cols = 16, .vocab = 37},
                                 {.batch = 9, .tokens = 1000, .cols = 8, .vocab = 300}};

std::vector<int32_t> random_tokens(Trial& trial, const Shape& shape) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < shape.batch * shape.tokens; ++i)
    tokens.push_back(static_cast<int32_t>(trial.random.below(shape.vocab)));
  return tokens;
}

// Returns tokens as frequent as those of text: token t in proportion to 1 / (t + 1), so the first is one of 16.
std::vector<int32_t> tokens_of_text(Trial& trial, const Shape& shape) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < shape.batch * shape.tokens; ++i) {
    const double exponent = static_cast<double>(trial.random.below(int64_t{1} << 24)) / (1 << 24);
    tokens.push_back(static_cast<int32_t>(std::pow(static_cast<double>(shape.vocab), exponent)) - 1);
  }
  return tokens;
}

void check_forward(Trial& trial, const Shape& shape, const DTypes& dtypes, double p, bool with_positions,
                   double scale = 1) {
  const int64_t rows = shape.batch * shape.tokens;
  const std::vector<int32_t> tokens = random_tokens(trial, shape);
  const auto* const device_tokens = Trial::pointer<const int32_t>(trial.input_array(tokens));
  const Operand& table = trial.input(dtypes.compute, shape.vocab, shape.cols, 1, 3);
  const Operand& positions = trial.input(dtypes.compute, shape.tokens + 2, shape.cols, 1, 1);
  const DropoutCase dropout(trial, p, shape.batch, shape.tokens);
  Operand& x = trial.output(dtypes.residual, rows, shape.cols, 2);
  trial.run(EmbeddingForward{.tokens = device_tokens,
                             .token_rows = TokenRows::whole(shape.tokens),
                             .token_table = table.matrix(),
                             .position_table = with_positions ? positions.matrix() : Matrix(),
                             .dropout = dropout.dropout,
                             .x = x.matrix(),
                             .token_scale = scale});
  std::vector<double> expected;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      const double position = with_positions ? positions.at(row % shape.tokens, col) : 0;
      expected.push_back((scale * table.at(tokens[row], col) + position) * dropout.factor(row, col));
    }
  }
  trial.expect_near("x", x, expected, scale * 0x1p-21);  // three roundings in f32 of numbers up to scale * 2^3
}

struct BackwardOptions {
  double p;
  bool with_positions, accumulate_token, accumulate_position;
  double scale = 1;
};

void check_backward(Trial& trial, const Shape& shape, DType residual, const BackwardOptions& options) {
  const int64_t rows = shape.batch * shape.tokens;
  const std::vector<int32_t> tokens = random_tokens(trial, shape);
  const auto* const device_tokens = Trial::pointer<const int32_t>(trial.input_array(tokens));
  const Operand& dx = trial.input(residual, rows, shape.cols, 1, 3);
  const DropoutCase dropout(trial, options.p, shape.batch, shape.tokens);
  // A table that is overwritten may have held anything, also NaN.
  Operand& d_table = options.accumulate_token ? trial.in_out(DType::f32, shape.vocab, shape.cols, 1, 1)
                                              : trial.output(DType::f32, shape.vocab, shape.cols, 1);
  Operand& d_positions = options.accumulate_position ? trial.in_out(DType::f32, shape.tokens + 3, shape.cols)
                                                     : trial.output(DType::f32, shape.tokens + 3, shape.cols);
  const size_t cols = static_cast<size_t>(shape.cols);
  std::vector<double> table_sums(static_cast<size_t>(shape.vocab) * cols);
  std::vector<double> position_sums(static_cast<size_t>(shape.tokens + 3) * cols);
  if (options.accumulate_token) table_sums = d_table.values();
  if (options.accumulate_position) position_sums = d_positions.values();
  std::vector<float> plain_table = to_real<float>(table_sums);
  std::vector<float> plain_positions = to_real<float>(position_sums);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      const double gradient = dx.at(row, col) * dropout.factor(row, col);
      const size_t in_table = static_cast<size_t>(tokens[row]) * cols + static_cast<size_t>(col);
      const size_t in_positions = static_cast<size_t>(row % shape.tokens) * cols + static_cast<size_t>(col);
      table_sums[in_table] += options.scale * gradient;
      position_sums[in_positions] += gradient;
      plain_table[in_table] += static_cast<float>(options.scale * gradient);
      plain_positions[in_positions] += static_cast<float>(gradient);
    }
  }
  trial.run(EmbeddingBackward{.tokens = device_tokens,
                              .token_rows = TokenRows::whole(shape.tokens),
                              .dx = dx.matrix(),
                              .dropout = dropout.dropout,
                              .d_token_table = d_table.matrix(),
                              .d_position_table = options.with_positions ? d_positions.matrix() : Matrix(),
                              .accumulate_token = options.accumulate_token,
                              .accumulate_position = options.accumulate_position,
                              .token_scale = options.scale});
  trial.expect_close("d_token_table", d_table, table_sums, to_double(plain_table));
  if (options.with_positions)
    trial.expect_close("d_position_table", d_positions, position_sums, to_double(plain_positions));
}

// Slices of the vocabulary: each adds its tokens, the first also the positions, and together they equal the whole. The
// gradient of a slice is that of its rows.
void check_slices(Trial& trial, const DTypes& dtypes, double p) {
  constexpr Shape shape{.batch = 2, .tokens = 13, .cols = 65, .vocab = 24};
  constexpr int64_t rows = shape.batch * shape.tokens;
  constexpr int64_t slice_rows = 10;  // the last slice ends in padding
  constexpr int64_t num_tokens = 3 * slice_rows;
  const std::vector<int32_t> tokens = random_tokens(trial, shape);
  const auto* const device_tokens = Trial::pointer<const int32_t>(trial.input_array(tokens));
  const Operand& table = trial.input(dtypes.compute, num_tokens, shape.cols);
  const Operand& positions = trial.input(dtypes.compute, shape.tokens, shape.cols);
  const DropoutCase dropout(trial, p, shape.batch, shape.tokens);
  const Operand& dx = trial.input(dtypes.residual, rows, shape.cols, 1, 3);
  std::vector<double> sum(static_cast<size_t>(rows * shape.cols));
  Operand& whole = trial.output(dtypes.residual, rows, shape.cols);
  trial.run(EmbeddingForward{.tokens = device_tokens,
                             .token_rows = TokenRows::whole(shape.tokens),
                             .token_table = table.matrix(),
                             .position_table = positions.matrix(),
                             .dropout = dropout.dropout,
                             .x = whole.matrix()});
  Operand& d_whole = trial.output(DType::f32, num_tokens, shape.cols);
  trial.run(EmbeddingBackward{.tokens = device_tokens,
                              .token_rows = TokenRows::whole(shape.tokens),
                              .dx = dx.matrix(),
                              .dropout = dropout.dropout,
                              .d_token_table = d_whole.matrix(),
                              .d_position_table = {},
                              .accumulate_token = false,
                              .accumulate_position = false});
  const std::vector<double> whole_gradients = d_whole.values();
  for (int64_t first = 0; first < num_tokens; first += slice_rows) {
    Operand& x = trial.output(dtypes.residual, rows, shape.cols, 2);
    trial.run(EmbeddingForward{.tokens = device_tokens,
                               .token_rows = TokenRows::whole(shape.tokens),
                               .token_table = table.matrix().row_range(first, slice_rows),
                               .position_table = first == 0 ? positions.matrix() : Matrix(),
                               .dropout = dropout.dropout,
                               .x = x.matrix(),
                               .first_token = first,
                               .num_tokens = num_tokens});
    for (int64_t row = 0; row < rows; ++row) {
      const bool holds_token = tokens[row] >= first && tokens[row] < first + slice_rows;
      for (int64_t col = 0; col < shape.cols; ++col) {
        sum[static_cast<size_t>(row * shape.cols + col)] += x.at(row, col);
        if (first > 0 && !holds_token) trial.expect_true(x.at(row, col) == 0, "a token of another slice gives zero");
      }
    }
    Operand& d_slice = trial.output(DType::f32, slice_rows, shape.cols, 1);
    trial.run(EmbeddingBackward{.tokens = device_tokens,
                                .token_rows = TokenRows::whole(shape.tokens),
                                .dx = dx.matrix(),
                                .dropout = dropout.dropout,
                                .d_token_table = d_slice.matrix(),
                                .d_position_table = {},
                                .accumulate_token = false,
                                .accumulate_position = false,
                                .first_token = first,
                                .num_tokens = num_tokens});
    const auto start = whole_gradients.begin() + static_cast<std::ptrdiff_t>(first * shape.cols);
    trial.expect_equal("d_token_table of a slice", d_slice,
                       {start, start + static_cast<std::ptrdiff_t>(slice_rows * shape.cols)});
  }
  // Two numbers, each rounded once, compared with their sum rounded once: numbers up to 2^3.
  const double unit = dtypes.residual == DType::bf16 ? 0x1p-8 : dtypes.residual == DType::f16 ? 0x1p-11 : 0x1p-24;
  trial.expect_near("the sum over slices", whole, sum, 3 * 8 * unit);
}

void check_slice_rejections(Trial& trial) {
  const Operand& table = trial.input(DType::f32, 5, 4);
  Operand& x = trial.output(DType::f32, 3, 4);
  const auto* const tokens = Trial::pointer<const int32_t>(trial.input_array(std::vector<int32_t>{0, 1, 9}));
  const auto forward = [&](int64_t first_token, int64_t num_tokens) {
    return EmbeddingForward{.tokens = tokens,
                            .token_rows = TokenRows::whole(3),
                            .token_table = table.matrix(),
                            .position_table = {},
                            .dropout = {},
                            .x = x.matrix(),
                            .first_token = first_token,
                            .num_tokens = num_tokens};
  };
  trial.expect_rejected_contents(forward(0, 0), "a token outside a whole table");
  trial.expect_rejected(forward(5, 0), "a whole table that begins inside the vocabulary");
  trial.expect_rejected(forward(6, 10), "a slice that ends behind the vocabulary");
  trial.expect_rejected(forward(-1, 10), "a slice that begins before the vocabulary");
  trial.expect_rejected_contents(forward(0, 9), "a token outside the vocabulary");
}

void check_rejections(Trial& trial) {
  const Operand& table = trial.input(DType::f32, 5, 4);
  Operand& x = trial.output(DType::f32, 3, 4);
  Operand& d_table = trial.output(DType::f32, 5, 4);
  for (const int32_t token : {-1, 5}) {
    const auto* const tokens = Trial::pointer<const int32_t>(trial.input_array(std::vector<int32_t>{0, 4, token}));
    trial.expect_rejected_contents(EmbeddingForward{.tokens = tokens,
                                                    .token_rows = TokenRows::whole(3),
                                                    .token_table = table.matrix(),
                                                    .position_table = {},
                                                    .dropout = {},
                                                    .x = x.matrix()},
                                   fmt::format("token {} of a table of 5", token));
    trial.expect_rejected_contents(EmbeddingBackward{.tokens = tokens,
                                                     .token_rows = TokenRows::whole(3),
                                                     .dx = x.matrix(),
                                                     .dropout = {},
                                                     .d_token_table = d_table.matrix(),
                                                     .d_position_table = {},
                                                     .accumulate_token = false,
                                                     .accumulate_position = false},
                                   fmt::format("token {} of a table of 5, backward", token));
  }
  const auto* const tokens = Trial::pointer<const int32_t>(trial.input_array(std::vector<int32_t>{0, 1, 2}));
  trial.expect_rejected(EmbeddingForward{.tokens = tokens,
                                         .token_rows = TokenRows::whole(3),
                                         .token_table = table.matrix(),
                                         .position_table = table.matrix().row_range(0, 2),
                                         .dropout = {},
                                         .x = x.matrix()},
                        "fewer positions than tokens of a sequence");
}

void add_cases(Suite& suite) {
  for (const Shape& shape : shapes) {
    const std::string name = fmt::format("B={} T={} h={} V={}", shape.batch, shape.tokens, shape.cols, shape.vocab);
    for (const DTypes& dtypes : dtype_pairs) {
      if (is_left_out(dtypes.compute, &shape - shapes)) continue;
      const std::string with_types = name + " " + name_of(dtypes);
      suite.add<EmbeddingForward>(with_types, [=](Trial& t) { check_forward(t, shape, dtypes, 0, true); });
      suite.add<EmbeddingForward>(with_types + " p=0.2", [=](Trial& t) { check_forward(t, shape, dtypes, 0.2, true); });
      suite.add<EmbeddingForward>(with_types + " no positions",
                                  [=](Trial& t) { check_forward(t, shape, dtypes, 0, false); });
      suite.add<EmbeddingForward>(with_types + " no positions p=0.6",
                                  [=](Trial& t) { check_forward(t, shape, dtypes, 0.6, false); });
    }
    for (const DType residual : compute_dtypes) {
      if (is_left_out(residual, &shape - shapes)) continue;
      const std::string with_type = fmt::format("{} R={}", name, dtype_name(residual));
      suite.add<EmbeddingBackward>(with_type + " p=0.2", [=](Trial& t) {
        check_backward(t, shape, residual,
                       {.p = 0.2, .with_positions = true, .accumulate_token = false, .accumulate_position = false});
      });
      suite.add<EmbeddingBackward>(with_type + " adding to both", [=](Trial& t) {
        check_backward(t, shape, residual,
                       {.p = 0, .with_positions = true, .accumulate_token = true, .accumulate_position = true});
      });
      suite.add<EmbeddingBackward>(with_type + " adding to tokens (tied head)", [=](Trial& t) {
        check_backward(t, shape, residual,
                       {.p = 0.2, .with_positions = true, .accumulate_token = true, .accumulate_position = false});
      });
      suite.add<EmbeddingBackward>(with_type + " no positions", [=](Trial& t) {
        check_backward(t, shape, residual,
                       {.p = 0, .with_positions = false, .accumulate_token = false, .accumulate_position = false});
      });
    }
  }
  for (const DTypes& dtypes : dtype_pairs) {
    suite.add<EmbeddingForward>("scaled tokens p=0.2 " + name_of(dtypes),
                                [=](Trial& t) { check_forward(t, shapes[3], dtypes, 0.2, true, 11.25); });
    suite.add<EmbeddingForward>("scaled tokens, no positions " + name_of(dtypes),
                                [=](Trial& t) { check_forward(t, shapes[6], dtypes, 0, false, 11.25); });
  }
  for (const DType residual : compute_dtypes) {
    suite.add<EmbeddingBackward>(fmt::format("scaled tokens R={}", dtype_name(residual)), [=](Trial& t) {
      check_backward(
          t, shapes[3], residual,
          {.p = 0.2, .with_positions = true, .accumulate_token = true, .accumulate_position = true, .scale = 11.25});
    });
  }
  for (const Shape& shape : long_shapes) {
    suite.add<EmbeddingBackward>(fmt::format("{} tokens", shape.batch * shape.tokens), [=](Trial& t) {
      check_backward(t, shape, DType::f32,
                     {.p = 0.2, .with_positions = true, .accumulate_token = true, .accumulate_position = false});
    });
  }
  for (const DTypes& dtypes : dtype_pairs) {
    for (const double p : {0.0, 0.3}) {
      suite.add<EmbeddingForward>(fmt::format("slices of the vocabulary p={} {}", p, name_of(dtypes)),
                                  [=](Trial& t) { check_slices(t, dtypes, p); });
    }
  }
  suite.add<EmbeddingForward>("rejections", check_rejections);
  suite.add<EmbeddingForward>("rejections of slices", check_slice_rejections);

  for (const DTypes& dtypes : dtype_pairs) {
    const Shape bench_shape{
        .batch = suite.bench_rows(dtypes.compute, 8192, 81920) / 1024, .tokens = 1024, .cols = 768, .vocab = 50304};
    const int64_t rows = bench_shape.batch * bench_shape.tokens;
    suite.add_bench<EmbeddingForward>(fmt::format("N={} h=768 V=50304 {}", rows, name_of(dtypes)), [=](Trial& t) {
      const auto* const tokens = Trial::pointer<const int32_t>(t.input_array(tokens_of_text(t, bench_shape)));
      t.time(EmbeddingForward{.tokens = tokens,
                              .token_rows = TokenRows::whole(bench_shape.tokens),
                              .token_table = t.input(dtypes.compute, bench_shape.vocab, 768).matrix(),
                              .position_table = t.input(dtypes.compute, bench_shape.tokens, 768).matrix(),
                              .dropout = {},
                              .x = t.output(dtypes.residual, rows, 768).matrix()});
    });
  }
  constexpr Shape bench_shape{.batch = 8, .tokens = 1024, .cols = 768, .vocab = 50304};
  for (const DType residual : {DType::f32, DType::bf16}) {
    suite.add_bench<EmbeddingBackward>(
        fmt::format("N=8192 h=768 V=50304 adding R={}", dtype_name(residual)), [=](Trial& t) {
          const auto* const tokens = Trial::pointer<const int32_t>(t.input_array(tokens_of_text(t, bench_shape)));
          t.time(EmbeddingBackward{.tokens = tokens,
                                   .token_rows = TokenRows::whole(bench_shape.tokens),
                                   .dx = t.input(residual, 8192, 768).matrix(),
                                   .dropout = {},
                                   .d_token_table = t.in_out(DType::f32, bench_shape.vocab, 768).matrix(),
                                   .d_position_table = t.in_out(DType::f32, bench_shape.tokens, 768).matrix(),
                                   .accumulate_token = true,
                                   .accumulate_position = true});
        });
  }
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_embedding
