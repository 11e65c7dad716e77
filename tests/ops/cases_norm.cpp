// Norms, and the additions to the residual stream around them.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_norm {
namespace {

constexpr double eps = 1e-5;

struct Shape {
  int64_t batch, tokens, cols;
};
constexpr Shape shapes[] = {{1, 1, 1}, {1, 3, 7}, {2, 5, 31}, {3, 7, 64}, {2, 13, 129}, {1, 2, 1031}, {5, 11, 48}};

template <typename Real>
struct Statistics {
  std::vector<Real> mean, rstd;
};

template <typename Real>
Statistics<Real> statistics(NormKind kind, const std::vector<Real>& x, int64_t cols) {
  Statistics<Real> result;
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(cols)) {
    Real mean = 0;
    if (kind == NormKind::layernorm) {
      for (int64_t i = 0; i < cols; ++i) mean += x[first + i];
      mean /= static_cast<Real>(cols);
    }
    Real variance = 0;
    for (int64_t i = 0; i < cols; ++i) variance += (x[first + i] - mean) * (x[first + i] - mean);
    variance /= static_cast<Real>(cols);
    result.mean.push_back(mean);
    result.rstd.push_back(1 / std::sqrt(variance + static_cast<Real>(eps)));
  }
  return result;
}

template <typename Real>
std::vector<Real> normalize(const Statistics<Real>& stats, const std::vector<Real>& x, const std::vector<Real>& gamma,
                            const std::vector<Real>& beta) {
  std::vector<Real> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / gamma.size();
    const size_t col = i % gamma.size();
    y[i] = (x[i] - stats.mean[row]) * stats.rstd[row] * gamma[col] + (beta.empty() ? Real{0} : beta[col]);
  }
  return y;
}

template <typename Real>
std::vector<Real> norm(NormKind kind, const std::vector<Real>& x, const std::vector<Real>& gamma,
                       const std::vector<Real>& beta) {
  return normalize(statistics(kind, x, static_cast<int64_t>(gamma.size())), x, gamma, beta);
}

template <typename Real>
struct NormGradients {
  std::vector<Real> dx, d_gamma, d_beta;
};

template <typename Real>
NormGradients<Real> norm_gradients(NormKind kind, const Statistics<Real>& stats, const std::vector<Real>& dy,
                                   const std::vector<Real>& x, const std::vector<Real>& gamma,
                                   const std::vector<Real>& residual) {
  const size_t cols = gamma.size();
  NormGradients<Real> result{std::vector<Real>(x.size()), std::vector<Real>(cols), std::vector<Real>(cols)};
  for (size_t row = 0; row < x.size() / cols; ++row) {
    Real mean_g = 0;
    Real mean_g_x_hat = 0;
    const auto x_hat = [&](size_t i) { return (x[row * cols + i] - stats.mean[row]) * stats.rstd[row]; };
    for (size_t i = 0; i < cols; ++i) {
      const Real dy_i = dy[row * cols + i];
      result.d_gamma[i] += dy_i * x_hat(i);
      result.d_beta[i] += dy_i;
      mean_g += dy_i * gamma[i] / static_cast<Real>(cols);
      mean_g_x_hat += dy_i * gamma[i] * x_hat(i) / static_cast<Real>(cols);
    }
    if (kind == NormKind::rmsnorm) mean_g = 0;
    for (size_t i = 0; i < cols; ++i) {
      const Real added = residual.empty() ? Real{0} : residual[row * cols + i];
      result.dx[row * cols + i] =
          added + stats.rstd[row] * (dy[row * cols + i] * gamma[i] - mean_g - x_hat(i) * mean_g_x_hat);
    }
  }
  return result;
}

std::vector<double> add_branch(const Operand& x, const Operand& branch, const DropoutCase& dropout) {
  const Matrix view = x.matrix();
  std::vector<double> sum;
  for (int64_t row = 0; row < view.rows; ++row)
    for (int64_t col = 0; col < view.cols; ++col)
      sum.push_back(x.at(row, col) + branch.at(row, col) * dropout.factor(row, col));
  return sum;
}

struct NormOptions {
  NormKind kind;
  bool with_branch = true;
  double p = 0;
  bool with_beta = true;
  double offset = 0;  // added to x: means are then large compared with the spread
  bool offset_gamma = false;
};

std::vector<double> gains(const Operand& gamma, bool offset) {
  std::vector<double> values = gamma.values();
  for (double& value : values) value += offset ? 1 : 0;
  return values;
}

// Gaps between rows are multiples of `gap` elements.
void check_forward(Trial& trial, const Shape& shape, const DTypes& dtypes, const NormOptions& options,
                   int64_t gap = 1) {
  const int64_t rows = shape.batch * shape.tokens;
  Operand& x = trial.in_out(dtypes.residual, rows, shape.cols, 1, 3 * gap);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < shape.cols; ++col) x.set(row, col, x.at(row, col) + options.offset);
  const Operand& branch = trial.input(dtypes.compute, rows, shape.cols, 1, gap);
  const DropoutCase dropout(trial, options.p, shape.batch, shape.tokens);
  const Operand& gamma = trial.input(DType::f32, 1, shape.cols);
  const Operand& beta = trial.input(DType::f32, 1, shape.cols);
  Operand& x_out = trial.output(dtypes.residual, rows, shape.cols, 5 * gap);
  Operand& y = trial.output(dtypes.compute, rows, shape.cols, 2 * gap);
  Operand& mean = trial.output(DType::f32, 1, rows);
  Operand& rstd = trial.output(DType::f32, 1, rows);
  const bool centered = options.kind == NormKind::layernorm;

  NormForward op{};
  op.kind = options.kind;
  op.eps = eps;
  op.token_rows = TokenRows::whole(shape.tokens);
  op.x = x.matrix();
  if (options.with_branch) {
    op.branch = branch.matrix();
    op.dropout = dropout.dropout;
    op.x_out = x_out.matrix();
  }
  op.gamma = gamma.matrix();
  op.offset = options.offset_gamma;
  if (options.with_beta) op.beta = beta.matrix();
  op.y = y.matrix();
  if (centered) op.mean = mean.matrix();
  op.rstd = rstd.matrix();
  const std::vector<double> x_before = x.values();
  trial.run(op);

  trial.expect_equal("x", x, x_before);
  if (options.with_branch) {
    // A sum of two roundings in f32 before the one that is stored.
    trial.expect_near("x_out", x_out, add_branch(x, branch, dropout), 0x1p-22 * (4 + std::abs(options.offset)));
  }
  const std::vector<double> normed = options.with_branch ? x_out.values() : x.values();
  const std::vector<double> beta_values = options.with_beta ? beta.values() : std::vector<double>{};
  const auto stats = statistics<double>(options.kind, normed, shape.cols);
  const auto plain_stats = statistics<float>(options.kind, to_real<float>(normed), shape.cols);
  // Sums and differences of numbers up to a few units from the offset.
  const double noise = 0x1p-23 * (1 + std::abs(options.offset));
  const std::vector<double> gain = gains(gamma, options.offset_gamma);
  const auto plain = norm(options.kind, to_real<float>(normed), to_real<float>(gain), to_real<float>(beta_values));
  trial.expect_close("y", y, norm(options.kind, normed, gain, beta_values), rounded(to_double(plain), dtypes.compute),
                     3, noise);
  if (centered) trial.expect_close("mean", mean, stats.mean, to_double(plain_stats.mean), 3, noise);
  trial.expect_close("rstd", rstd, stats.rstd, to_double(plain_stats.rstd));
}

// Checks that recomputing from x_out gives the bits of the fused op, in place too.
void check_recompute(Trial& trial, const DTypes& dtypes) {
  constexpr int64_t rows = 6, cols = 77;
  Operand& x = trial.in_out(dtypes.residual, rows, cols);
  const Operand& branch = trial.input(dtypes.compute, rows, cols);
  const DropoutCase dropout(trial, 0.25, 2, 3);
  const Operand& gamma = trial.input(DType::f32, 1, cols);
  Operand& y = trial.output(dtypes.compute, rows, cols);
  Operand& mean = trial.output(DType::f32, 1, rows);
  Operand& rstd = trial.output(DType::f32, 1, rows);
  NormForward op{};
  op.kind = NormKind::layernorm;
  op.eps = eps;
  op.token_rows = TokenRows::whole(3);
  op.x = op.x_out = x.matrix();
  op.branch = branch.matrix();
  op.dropout = dropout.dropout;
  op.gamma = gamma.matrix();
  op.y = y.matrix();
  op.mean = mean.matrix();
  op.rstd = rstd.matrix();
  trial.run(op);
  const std::vector<double> fused = y.values();
  op.branch = op.x_out = Matrix();
  trial.run(op);
  trial.expect_equal("y from x_out alone", y, fused);
}

struct BackwardOptions {
  NormKind kind;
  bool with_residual = true;
  bool with_beta = true;
  bool in_place = false;
  bool offset_gamma = false;
};

void check_backward(Trial& trial, const Shape& shape, const DTypes& dtypes, const BackwardOptions& options,
                    int64_t gap = 1) {
  const int64_t rows = shape.batch * shape.tokens;
  const Operand& dy = trial.input(dtypes.compute, rows, shape.cols, 1, 3 * gap);
  const Operand& x = trial.input(dtypes.residual, rows, shape.cols, 2, gap);
  const Operand& gamma = trial.input(DType::f32, 1, shape.cols);
  Operand& residual = trial.in_out(dtypes.residual, rows, shape.cols, 1, gap);
  Operand& separate_dx = trial.output(dtypes.residual, rows, shape.cols, gap);
  Operand& dx = options.in_place ? residual : separate_dx;
  Operand& gamma_sums = trial.output(DType::f64, 1, shape.cols);
  Operand& beta_sums = trial.output(DType::f64, 1, shape.cols);

  const std::vector<double> x_values = x.values();
  const auto stats = statistics<double>(options.kind, x_values, shape.cols);
  const Operand& mean = trial.input(DType::f32, 1, rows, stats.mean);
  const Operand& rstd = trial.input(DType::f32, 1, rows, stats.rstd);
  const Statistics<float> plain_stats{to_real<float>(stats.mean), to_real<float>(stats.rstd)};
  const std::vector<double> residual_values = options.with_residual ? residual.values() : std::vector<double>{};
  const std::vector<double> gain = gains(gamma, options.offset_gamma);
  const auto expected = norm_gradients(options.kind, stats, dy.values(), x_values, gain, residual_values);
  const auto plain = norm_gradients(options.kind, plain_stats, to_real<float>(dy.values()), to_real<float>(x_values),
                                    to_real<float>(gain), to_real<float>(residual_values));

  NormBackward op{};
  op.kind = options.kind;
  op.dy = dy.matrix();
  op.x = x.matrix();
  op.gamma = gamma.matrix();
  op.offset = options.offset_gamma;
  if (options.kind == NormKind::layernorm) op.mean = mean.matrix();
  op.rstd = rstd.matrix();
  if (options.with_residual) op.dx_residual = residual.matrix();
  op.dx = dx.matrix();
  op.gamma_sums = gamma_sums.matrix();
  if (options.with_beta) op.beta_sums = beta_sums.matrix();
  trial.run(op);

  // dx has differences of dy gamma and its mean, times rstd.
  double largest_term = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < shape.cols; ++col)
      largest_term =
          std::max(largest_term, std::abs(dy.at(row, col) * gain[static_cast<size_t>(col)]) * rstd.at(0, row));
  trial.expect_close("dx", dx, expected.dx, rounded(to_double(plain.dx), dtypes.residual), 3, 0x1p-23 * largest_term);
  // Sums of a few rows and their terms are in f32.
  const auto noise = [](const std::vector<double>& sums) {
    double largest = 0;
    for (const double sum : sums) largest = std::max(largest, std::abs(sum));
    return 0x1p-22 * largest;
  };
  trial.expect_close("gamma_sums", gamma_sums, expected.d_gamma, to_double(plain.d_gamma), 3, noise(expected.d_gamma));
  if (options.with_beta) {
    trial.expect_close("beta_sums", beta_sums, expected.d_beta, to_double(plain.d_beta), 3, noise(expected.d_beta));
  } else {
    trial.expect_true(std::isnan(beta_sums.at(0, 0)), "beta_sums, not given, are left alone");
  }
}

// Checks that the reference formula is the derivative of the forward formula.
void check_reference_gradient(Trial& trial, NormKind kind) {
  constexpr int64_t rows = 2, cols = 7;
  const std::vector<double> x = trial.input(DType::f32, rows, cols).values();
  const std::vector<double> dy = trial.input(DType::f32, rows, cols).values();
  const std::vector<double> gamma = trial.input(DType::f32, 1, cols).values();
  const std::vector<double> beta = trial.input(DType::f32, 1, cols).values();
  const auto gradients = norm_gradients(kind, statistics(kind, x, cols), dy, x, gamma, {});
  const auto loss = [&](const std::vector<double>& y) {
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const auto of_x = [&](const std::vector<double>& moved) { return loss(norm(kind, moved, gamma, beta)); };
  const auto of_gamma = [&](const std::vector<double>& moved) { return loss(norm(kind, x, moved, beta)); };
  const auto of_beta = [&](const std::vector<double>& moved) { return loss(norm(kind, x, gamma, moved)); };
  constexpr double bound = 1e-8;  // error of central differences with a step of 1e-5
  trial.expect_true(difference_from_numeric(of_x, x, gradients.dx) < bound, "dx is the derivative");
  trial.expect_true(difference_from_numeric(of_gamma, gamma, gradients.d_gamma) < bound, "d_gamma is the derivative");
  trial.expect_true(difference_from_numeric(of_beta, beta, gradients.d_beta) < bound, "d_beta is the derivative");
}

void check_residual_add(Trial& trial, const Shape& shape, const DTypes& dtypes, double p, bool in_place) {
  const int64_t rows = shape.batch * shape.tokens;
  Operand& x = trial.in_out(dtypes.residual, rows, shape.cols, 1, 3);
  const Operand& branch = trial.input(dtypes.compute, rows, shape.cols, 1, 2);
  Operand& separate = trial.output(dtypes.residual, rows, shape.cols, 1);
  const DropoutCase dropout(trial, p, shape.batch, shape.tokens);
  Operand& x_out = in_place ? x : separate;
  const std::vector<double> expected = add_branch(x, branch, dropout);
  trial.run(ResidualAdd{.token_rows = TokenRows::whole(shape.tokens),
                        .x = x.matrix(),
                        .branch = branch.matrix(),
                        .dropout = dropout.dropout,
                        .x_out = x_out.matrix()});
  trial.expect_near("x_out", x_out, expected, 0x1p-21);
}

void check_branch_backward(Trial& trial, const Shape& shape, const DTypes& dtypes, double p) {
  const int64_t rows = shape.batch * shape.tokens;
  const Operand& dx = trial.input(dtypes.residual, rows, shape.cols, 1, 3);
  Operand& d_branch = trial.output(dtypes.compute, rows, shape.cols, 1);
  const DropoutCase dropout(trial, p, shape.batch, shape.tokens);
  trial.run(BranchBackward{.token_rows = TokenRows::whole(shape.tokens),
                           .dx = dx.matrix(),
                           .dropout = dropout.dropout,
                           .d_branch = d_branch.matrix()});
  // Exact: one product in f32, one rounding to C; a dropped element is 0 and a kept one is not.
  std::vector<double> expected;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      const double product = dx.at(row, col) * rounded(dropout.factor(row, col), DType::f32);
      expected.push_back(rounded(product, dtypes.compute));
    }
  }
  trial.expect_equal("d_branch", d_branch, expected);
}

// Checks that a rank with some rows of a micro-batch, not at sequence ends, draws the same random numbers for them as
// one with all rows.
template <typename Run>
void check_row_slices(Trial& trial, const DTypes& dtypes, const Run& run) {
  constexpr Shape shape{3, 7, 65};
  constexpr int64_t rows = shape.batch * shape.tokens;
  const Operand& x = trial.input(dtypes.residual, rows, shape.cols);
  const Operand& branch = trial.input(dtypes.compute, rows, shape.cols);
  const DropoutCase dropout(trial, 0.4, shape.batch, shape.tokens);
  const std::vector<double> whole = run(x.matrix(), branch.matrix(), dropout.dropout);
  for (const auto& [first, end] : {std::pair<int64_t, int64_t>{0, 5}, {5, 6}, {6, 19}, {19, rows}}) {
    Dropout of_slice = dropout.dropout;
    of_slice.first_row = first;
    const std::vector<double> part =
        run(x.matrix().row_range(first, end - first), branch.matrix().row_range(first, end - first), of_slice);
    const auto start = whole.begin() + static_cast<std::ptrdiff_t>(first * shape.cols);
    trial.expect_true(std::equal(part.begin(), part.end(), start),
                      fmt::format("rows {} to {} have the bits that they have among all", first, end));
  }
}

std::vector<double> normed_rows(Trial& trial, NormKind kind, const Matrix& x, const Matrix& branch,
                                const Dropout& dropout) {
  Operand& y = trial.output(branch.dtype, x.rows, x.cols);
  NormForward op{};
  op.kind = kind;
  op.eps = eps;
  op.token_rows = TokenRows::whole(7);
  op.x = x;
  op.branch = branch;
  op.dropout = dropout;
  op.x_out = trial.output(x.dtype, x.rows, x.cols).matrix();
  op.gamma = trial.input(DType::f32, 1, x.cols, std::vector<double>(static_cast<size_t>(x.cols), 1.25)).matrix();
  op.y = y.matrix();
  if (kind == NormKind::layernorm) op.mean = trial.output(DType::f32, 1, x.rows).matrix();
  op.rstd = trial.output(DType::f32, 1, x.rows).matrix();
  trial.run(op);
  return y.values();
}

void add_row_slice_cases(Suite& suite) {
  for (const DTypes& dtypes : dtype_pairs) {
    const std::string name = "slices of rows " + name_of(dtypes);
    for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
      suite.add<NormForward>(name + (kind == NormKind::layernorm ? " layernorm" : " rmsnorm"), [=](Trial& t) {
        check_row_slices(t, dtypes, [&](const Matrix& x, const Matrix& branch, const Dropout& dropout) {
          return normed_rows(t, kind, x, branch, dropout);
        });
      });
    }
    suite.add<ResidualAdd>(name, [=](Trial& t) {
      check_row_slices(t, dtypes, [&](const Matrix& x, const Matrix& branch, const Dropout& dropout) {
        Operand& x_out = t.output(x.dtype, x.rows, x.cols);
        t.run(ResidualAdd{
            .token_rows = TokenRows::whole(7), .x = x, .branch = branch, .dropout = dropout, .x_out = x_out.matrix()});
        return x_out.values();
      });
    });
    suite.add<BranchBackward>(name, [=](Trial& t) {
      check_row_slices(t, dtypes, [&](const Matrix& x, const Matrix& branch, const Dropout& dropout) {
        Operand& d_branch = t.output(branch.dtype, x.rows, x.cols);
        t.run(BranchBackward{
            .token_rows = TokenRows::whole(7), .dx = x, .dropout = dropout, .d_branch = d_branch.matrix()});
        return d_branch.values();
      });
    });
  }
}

void check_philox(Trial& trial) {
  using Words = std::array<uint32_t, 4>;
  constexpr uint32_t ones = 0xFFFFFFFFU;
  trial.expect_true(reference_philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U},
                    "known answer for zeros");
  trial.expect_true(reference_philox({ones, ones, ones, ones}, {ones, ones}) ==
                        Words{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU},
                    "known answer for ones");
  trial.expect_true(
      reference_philox({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}, {0xA4093822U, 0x299F31D0U}) ==
          Words{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U},
      "known answer for the digits of pi");
}

void check_rejections(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 4, 8);
  const Operand& gamma = trial.input(DType::f32, 1, 8);
  const Operand& wide_gamma = trial.input(DType::f32, 1, 9);
  Operand& y = trial.output(DType::f32, 4, 8);
  const Operand& bf16_gamma = trial.input(DType::bf16, 1, 8);
  Operand& rstd = trial.output(DType::f32, 1, 4);
  NormForward op{};
  op.kind = NormKind::rmsnorm;
  op.eps = eps;
  op.token_rows = TokenRows::whole(4);
  op.x = x.matrix();
  op.gamma = wide_gamma.matrix();
  op.y = y.matrix();
  op.rstd = rstd.matrix();
  trial.expect_rejected(op, "a gamma of another width");
  op.gamma = bf16_gamma.matrix();
  trial.expect_rejected(op, "a gamma in bf16");
  op.gamma = gamma.matrix();
  op.kind = NormKind::layernorm;
  trial.expect_rejected(op, "layernorm without mean");
  Dropout dropout;
  dropout.p = 0.5;
  trial.expect_rejected(ResidualAdd{.token_rows = TokenRows::whole(4),
                                    .x = x.matrix(),
                                    .branch = x.matrix(),
                                    .dropout = dropout,
                                    .x_out = y.matrix()},
                        "dropout without sample_ids");
  dropout.sample_ids = Trial::pointer<const int64_t>(trial.input_array(std::vector<int64_t>{1}));
  trial.expect_rejected(ResidualAdd{.token_rows = TokenRows::whole(0),
                                    .x = x.matrix(),
                                    .branch = x.matrix(),
                                    .dropout = dropout,
                                    .x_out = y.matrix()},
                        "dropout without the length of a sequence");
  dropout.first_row = -1;
  trial.expect_rejected(ResidualAdd{.token_rows = TokenRows::whole(4),
                                    .x = x.matrix(),
                                    .branch = x.matrix(),
                                    .dropout = dropout,
                                    .x_out = y.matrix()},
                        "rows that begin before the micro-batch");
}

constexpr int64_t bench_tokens = 1024, bench_cols = 768;

void bench_norm_forward(Trial& trial, const DTypes& dtypes, int64_t rows, double p) {
  const Operand& x = trial.input(dtypes.residual, rows, bench_cols);
  const Operand& branch = trial.input(dtypes.compute, rows, bench_cols);
  const DropoutCase dropout(trial, p, rows / bench_tokens, bench_tokens);
  NormForward op{};
  op.kind = NormKind::layernorm;
  op.eps = eps;
  op.token_rows = TokenRows::whole(bench_tokens);
  op.x = x.matrix();
  op.branch = branch.matrix();
  op.dropout = dropout.dropout;
  op.x_out = trial.output(dtypes.residual, rows, bench_cols).matrix();
  op.gamma = trial.input(DType::f32, 1, bench_cols).matrix();
  op.beta = trial.input(DType::f32, 1, bench_cols).matrix();
  op.y = trial.output(dtypes.compute, rows, bench_cols).matrix();
  op.mean = trial.output(DType::f32, 1, rows).matrix();
  op.rstd = trial.output(DType::f32, 1, rows).matrix();
  trial.time(op);
}

void bench_norm_backward(Trial& trial, const DTypes& dtypes, int64_t rows) {
  NormBackward op{};
  op.kind = NormKind::layernorm;
  op.dy = trial.input(dtypes.compute, rows, bench_cols).matrix();
  op.x = trial.input(dtypes.residual, rows, bench_cols).matrix();
  op.gamma = trial.input(DType::f32, 1, bench_cols).matrix();
  op.mean = trial.input(DType::f32, 1, rows).matrix();
  op.rstd = trial.input(DType::f32, 1, rows).matrix();
  op.dx_residual = op.dx = trial.in_out(dtypes.residual, rows, bench_cols).matrix();
  op.gamma_sums = trial.output(DType::f64, 1, bench_cols).matrix();
  op.beta_sums = trial.output(DType::f64, 1, bench_cols).matrix();
  trial.time(op);
}

// Rows of which a GPU thread takes two elements, packs of eight, or up to 16.
void add_wide_cases(Suite& suite) {
  constexpr int64_t pack = 8;
  for (const DTypes& dtypes : dtype_pairs) {
    for (const int64_t cols : {777, 2500, 8192, 12288, 20480}) {
      const Shape shape{1, 2, cols};
      const std::string name = fmt::format("wide h={} {}", cols, name_of(dtypes));
      suite.add<NormForward>(name,
                             [=](Trial& t) { check_forward(t, shape, dtypes, {.kind = NormKind::layernorm}, pack); });
      suite.add<NormBackward>(name, [=](Trial& t) {
        check_backward(t, shape, dtypes, {.kind = NormKind::layernorm, .in_place = true}, pack);
      });
    }
  }
}

void add_norm_cases(Suite& suite) {
  for (const DTypes& dtypes : dtype_pairs) {
    for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
      const std::string kind_name = kind == NormKind::layernorm ? "layernorm" : "rmsnorm";
      for (const Shape& shape : shapes) {
        if (is_left_out(dtypes.compute, &shape - shapes)) continue;
        const std::string name =
            fmt::format("{} B={} T={} h={} {}", kind_name, shape.batch, shape.tokens, shape.cols, name_of(dtypes));
        suite.add<NormForward>(name, [=](Trial& t) { check_forward(t, shape, dtypes, {.kind = kind, .p = 0.3}); });
        suite.add<NormForward>(name + " p=0 no beta",
                               [=](Trial& t) { check_forward(t, shape, dtypes, {.kind = kind, .with_beta = false}); });
        suite.add<NormForward>(name + " no branch, x far from 0", [=](Trial& t) {
          check_forward(t, shape, dtypes, {.kind = kind, .with_branch = false, .offset = 1000});
        });
        suite.add<NormBackward>(name,
                                [=](Trial& t) { check_backward(t, shape, dtypes, {.kind = kind, .in_place = true}); });
        suite.add<NormBackward>(name + " no residual, no beta", [=](Trial& t) {
          check_backward(t, shape, dtypes, {.kind = kind, .with_residual = false, .with_beta = false});
        });
      }
    }
    suite.add<NormForward>("recompute " + name_of(dtypes), [=](Trial& t) { check_recompute(t, dtypes); });
    for (const int64_t cols : {129, 8192, 12288}) {
      const Shape shape{2, 3, cols};
      const std::string name = fmt::format("gains of 1 + gamma, h={} {}", cols, name_of(dtypes));
      suite.add<NormForward>(name, [=](Trial& t) {
        check_forward(t, shape, dtypes, {.kind = NormKind::rmsnorm, .p = 0.3, .with_beta = false, .offset_gamma = true},
                      8);
      });
      suite.add<NormBackward>(name, [=](Trial& t) {
        check_backward(t, shape, dtypes, {.kind = NormKind::rmsnorm, .with_beta = false, .offset_gamma = true}, 8);
      });
    }
  }
  add_wide_cases(suite);
  suite.add<NormBackward>("many blocks of rows", [](Trial& t) {
    check_backward(t, {3, 1000, 5}, dtype_pairs[0], {.kind = NormKind::layernorm});
  });
  suite.add<NormBackward>("derivative of layernorm",
                          [](Trial& t) { check_reference_gradient(t, NormKind::layernorm); });
  suite.add<NormBackward>("derivative of rmsnorm", [](Trial& t) { check_reference_gradient(t, NormKind::rmsnorm); });
  suite.add<NormForward>("rejections", check_rejections);
}

void add_residual_cases(Suite& suite) {
  for (const DTypes& dtypes : dtype_pairs) {
    for (const Shape& shape : shapes) {
      if (is_left_out(dtypes.compute, &shape - shapes)) continue;
      for (const double p : {0.0, 0.1, 0.7}) {
        const std::string name =
            fmt::format("B={} T={} h={} p={} {}", shape.batch, shape.tokens, shape.cols, p, name_of(dtypes));
        suite.add<ResidualAdd>(name, [=](Trial& t) { check_residual_add(t, shape, dtypes, p, false); });
        suite.add<ResidualAdd>(name + " in place", [=](Trial& t) { check_residual_add(t, shape, dtypes, p, true); });
        suite.add<BranchBackward>(name, [=](Trial& t) { check_branch_backward(t, shape, dtypes, p); });
      }
    }
  }
  suite.add<BranchBackward>("known answers of Philox4x32-10", check_philox);
}

void add_benches(Suite& suite) {
  for (const DTypes& dtypes : dtype_pairs) {
    const int64_t rows = suite.bench_rows(dtypes.compute, 8192, 81920);
    for (const double p : {0.0, 0.1}) {
      const std::string name = fmt::format("N={} h=768 p={} {}", rows, p, name_of(dtypes));
      suite.add_bench<NormForward>(name, [=](Trial& t) { bench_norm_forward(t, dtypes, rows, p); });
      suite.add_bench<ResidualAdd>(name, [=](Trial& t) {
        const DropoutCase dropout(t, p, rows / bench_tokens, bench_tokens);
        t.time(ResidualAdd{.token_rows = TokenRows::whole(bench_tokens),
                           .x = t.input(dtypes.residual, rows, bench_cols).matrix(),
                           .branch = t.input(dtypes.compute, rows, bench_cols).matrix(),
                           .dropout = dropout.dropout,
                           .x_out = t.output(dtypes.residual, rows, bench_cols).matrix()});
      });
      suite.add_bench<BranchBackward>(name, [=](Trial& t) {
        const DropoutCase dropout(t, p, rows / bench_tokens, bench_tokens);
        t.time(BranchBackward{.token_rows = TokenRows::whole(bench_tokens),
                              .dx = t.input(dtypes.residual, rows, bench_cols).matrix(),
                              .dropout = dropout.dropout,
                              .d_branch = t.output(dtypes.compute, rows, bench_cols).matrix()});
      });
    }
    suite.add_bench<NormBackward>(fmt::format("N={} h=768 {}", rows, name_of(dtypes)),
                                  [=](Trial& t) { bench_norm_backward(t, dtypes, rows); });
  }
}

const Registration norms(add_norm_cases);
const Registration row_slices(add_row_slice_cases);
const Registration residuals(add_residual_cases);
const Registration benches(add_benches);

}  // namespace
}  // namespace gptrain::ops_test::cases_norm
