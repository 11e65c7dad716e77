#include <cmath>
#include <fmt/format.h>
#include <numbers>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_query_key {
namespace {

constexpr double eps = 1e-5;
constexpr double theta = 10000;

struct Shape {
  int64_t batch, tokens, q_heads, k_heads, head_size;
};
constexpr Shape shapes[] = {{.batch = 1, .tokens = 1, .q_heads = 1, .k_heads = 1, .head_size = 2},
                            {.batch = 2, .tokens = 3, .q_heads = 3, .k_heads = 1, .head_size = 6},
                            {.batch = 1, .tokens = 5, .q_heads = 4, .k_heads = 2, .head_size = 64},
                            {.batch = 3, .tokens = 7, .q_heads = 2, .k_heads = 2, .head_size = 38},
                            {.batch = 1, .tokens = 3, .q_heads = 2, .k_heads = 1, .head_size = 70},
                            {.batch = 2, .tokens = 40, .q_heads = 2, .k_heads = 1, .head_size = 128},
                            {.batch = 1, .tokens = 3, .q_heads = 2, .k_heads = 1, .head_size = 134},
                            {.batch = 1, .tokens = 3, .q_heads = 2, .k_heads = 1, .head_size = 528}};

struct Options {
  DType dtype;
  bool with_norm, rotary;
  RopeScaling scaling = RopeScaling::none;
  bool offset = false;

  // Within eight tokens some of a head's pairs turn often, some seldom.
  RotaryAngles angles() const {
    return {.theta = theta,
            .scaling = scaling,
            .factor = 3,
            .low_freq_factor = 0.01,
            .high_freq_factor = 1,
            .original_length = 8};
  }
};

// One of q and k: [N, heads * D].
template <typename Real>
struct Heads {
  std::vector<Real> x, gamma;
  int64_t tokens, num_heads, head_size;

  template <typename Body>
  void for_each(const Body& body) const {
    const auto size = static_cast<size_t>(head_size);
    for (size_t first = 0; first < x.size(); first += size) {
      const auto row = static_cast<int64_t>(first / size) / num_heads;
      body(first, row % tokens);
    }
  }
};

// Returns the angle in f64, for the plain version too: thousands of radians leave f32 no accuracy. Scaled by
// wavelengths, as transformers defines it.
double angle(int64_t token, size_t pair, int64_t head_size, const RotaryAngles& angles) {
  const double frequency = std::pow(angles.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(head_size));
  const double wavelength = 2 * std::numbers::pi / frequency;
  double scaled = frequency / angles.factor;
  if (angles.scaling == RopeScaling::none) scaled = frequency;
  if (angles.scaling == RopeScaling::llama3 && wavelength < angles.original_length / angles.low_freq_factor) {
    const double smooth = (angles.original_length / wavelength - angles.low_freq_factor) /
                          (angles.high_freq_factor - angles.low_freq_factor);
    scaled = wavelength < angles.original_length / angles.high_freq_factor ? frequency
                                                                           : (1 - smooth) * scaled + smooth * frequency;
  }
  return static_cast<double>(token) * scaled;
}

template <typename Real>
Real rstd_of(const Heads<Real>& heads, size_t first) {
  Real sum = 0;
  for (size_t i = 0; i < static_cast<size_t>(heads.head_size); ++i) sum += heads.x[first + i] * heads.x[first + i];
  return 1 / std::sqrt(sum / static_cast<Real>(heads.head_size) + static_cast<Real>(eps));
}

// Rotates each pair of a head's vector by direction * angle.
template <typename Real>
void turn(std::vector<Real>& values, size_t first, int64_t token, int64_t head_size, double direction,
          const RotaryAngles& angles) {
  const auto half = static_cast<size_t>(head_size / 2);
  for (size_t i = 0; i < half; ++i) {
    const double radians = direction * angle(token, i, head_size, angles);
    const auto c = static_cast<Real>(std::cos(radians));
    const auto s = static_cast<Real>(std::sin(radians));
    const Real a = values[first + i];
    const Real b = values[first + half + i];
    values[first + i] = a * c - b * s;
    values[first + half + i] = b * c + a * s;
  }
}

template <typename Real>
Real gain(const Heads<Real>& heads, size_t i, const Options& options) {
  return (options.offset ? Real{1} : Real{0}) + heads.gamma[i];
}

template <typename Real>
std::vector<Real> forward(const Heads<Real>& heads, const Options& options) {
  std::vector<Real> y = heads.x;
  heads.for_each([&](size_t first, int64_t token) {
    if (options.with_norm) {
      const Real rstd = rstd_of(heads, first);
      for (size_t i = 0; i < heads.gamma.size(); ++i) y[first + i] *= rstd * gain(heads, i, options);
    }
    if (options.rotary) turn(y, first, token, heads.head_size, 1, options.angles());
  });
  return y;
}

template <typename Real>
struct HeadGradients {
  std::vector<Real> dx, d_gamma;
};

template <typename Real>
HeadGradients<Real> backward(const Heads<Real>& heads, const std::vector<Real>& dy, const Options& options) {
  HeadGradients<Real> result{dy, std::vector<Real>(static_cast<size_t>(heads.head_size))};
  heads.for_each([&](size_t first, int64_t token) {
    if (options.rotary) turn(result.dx, first, token, heads.head_size, -1, options.angles());
    if (!options.with_norm) return;
    const Real rstd = rstd_of(heads, first);
    Real mean = 0;
    for (size_t i = 0; i < heads.gamma.size(); ++i) {
      const Real x_hat = heads.x[first + i] * rstd;
      result.d_gamma[i] += result.dx[first + i] * x_hat;
      mean += result.dx[first + i] * gain(heads, i, options) * x_hat / static_cast<Real>(heads.head_size);
    }
    for (size_t i = 0; i < heads.gamma.size(); ++i)
      result.dx[first + i] = rstd * (result.dx[first + i] * gain(heads, i, options) - heads.x[first + i] * rstd * mean);
  });
  return result;
}

template <typename Real>
Heads<Real> heads_of(const Matrix& view, const std::vector<double>& x, const std::vector<double>& gamma,
                     const Shape& shape) {
  return {.x = to_real<Real>(x),
          .gamma = to_real<Real>(gamma),
          .tokens = shape.tokens,
          .num_heads = view.cols / shape.head_size,
          .head_size = shape.head_size};
}

std::vector<double> rstds(const Operand& q, const Operand& k, const Shape& shape) {
  const auto of_q = heads_of<double>(q.matrix(), q.values(), {}, shape);
  const auto of_k = heads_of<double>(k.matrix(), k.values(), {}, shape);
  const auto size = static_cast<size_t>(shape.head_size);
  std::vector<double> result;
  for (size_t row = 0; row < static_cast<size_t>(shape.batch * shape.tokens); ++row) {
    for (size_t head = 0; head < static_cast<size_t>(shape.q_heads); ++head)
      result.push_back(rstd_of(of_q, (row * static_cast<size_t>(shape.q_heads) + head) * size));
    for (size_t head = 0; head < static_cast<size_t>(shape.k_heads); ++head)
      result.push_back(rstd_of(of_k, (row * static_cast<size_t>(shape.k_heads) + head) * size));
  }
  return result;
}

void check_forward(Trial& trial, const Shape& shape, const Options& options, bool in_place) {
  const int64_t rows = shape.batch * shape.tokens;
  const int64_t k_cols = shape.k_heads * shape.head_size;
  Operand& q = trial.in_out(options.dtype, rows, shape.q_heads * shape.head_size, 1, 3);
  Operand& k = trial.in_out(options.dtype, rows, k_cols, 1, 1);
  Operand& separate_q = trial.output(options.dtype, rows, q.matrix().cols, 2);
  Operand& separate_k = trial.output(options.dtype, rows, k_cols);
  Operand& q_out = in_place ? q : separate_q;
  Operand& k_out = in_place ? k : separate_k;
  const Operand& q_gamma = trial.input(DType::f32, 1, shape.head_size);
  const Operand& k_gamma = trial.input(DType::f32, 1, shape.head_size);
  Operand& rstd = trial.output(DType::f32, rows, shape.q_heads + shape.k_heads);
  const std::vector<double> q_before = q.values();
  const std::vector<double> k_before = k.values();
  const std::vector<double> expected_rstd = rstds(q, k, shape);

  QueryKeyForward op{};
  op.token_rows = TokenRows::whole(shape.tokens);
  op.head_size = shape.head_size;
  op.q = q.matrix();
  op.k = k.matrix();
  if (options.with_norm) {
    op.q_gamma = q_gamma.matrix();
    op.k_gamma = k_gamma.matrix();
    op.rstd = rstd.matrix();
    op.offset = options.offset;
  }
  op.eps = eps;
  op.rotary = options.rotary;
  op.angles = options.angles();
  op.q_out = q_out.matrix();
  op.k_out = k_out.matrix();
  trial.run(op);

  const auto compare = [&](std::string_view what, const Operand& actual, const std::vector<double>& x,
                           const Operand& gamma) {
    const auto expected = forward(heads_of<double>(actual.matrix(), x, gamma.values(), shape), options);
    const auto plain = forward(heads_of<float>(actual.matrix(), x, gamma.values(), shape), options);
    trial.expect_close(what, actual, expected, rounded(to_double(plain), options.dtype), 3, 0x1p-22);
  };
  compare("q_out", q_out, q_before, q_gamma);
  compare("k_out", k_out, k_before, k_gamma);
  if (options.with_norm) trial.expect_near("rstd", rstd, expected_rstd, 0x1p-22 * 4);
}

void check_backward(Trial& trial, const Shape& shape, const Options& options) {
  const int64_t rows = shape.batch * shape.tokens;
  const Operand& q = trial.input(options.dtype, rows, shape.q_heads * shape.head_size, 1, 3);
  const Operand& k = trial.input(options.dtype, rows, shape.k_heads * shape.head_size, 1, 1);
  const Operand& q_gamma = trial.input(DType::f32, 1, shape.head_size);
  const Operand& k_gamma = trial.input(DType::f32, 1, shape.head_size);
  Operand& dq = trial.in_out(options.dtype, rows, q.matrix().cols, 1, 2);
  Operand& dk = trial.in_out(options.dtype, rows, k.matrix().cols, 1, 5);
  Operand& q_gamma_sums = trial.output(DType::f64, 1, shape.head_size);
  Operand& k_gamma_sums = trial.output(DType::f64, 1, shape.head_size);
  const Operand& rstd = trial.input(DType::f32, rows, shape.q_heads + shape.k_heads, rstds(q, k, shape));

  struct Expected {
    std::vector<double> dx, plain_dx, d_gamma, plain_d_gamma;
  };
  const auto expect = [&](const Operand& x, const Operand& gamma, const Operand& dy) {
    const auto exact = backward(heads_of<double>(x.matrix(), x.values(), gamma.values(), shape), dy.values(), options);
    const auto plain =
        backward(heads_of<float>(x.matrix(), x.values(), gamma.values(), shape), to_real<float>(dy.values()), options);
    return Expected{.dx = exact.dx,
                    .plain_dx = rounded(to_double(plain.dx), options.dtype),
                    .d_gamma = exact.d_gamma,
                    .plain_d_gamma = to_double(plain.d_gamma)};
  };
  const Expected of_q = expect(q, q_gamma, dq);
  const Expected of_k = expect(k, k_gamma, dk);

  QueryKeyBackward op{};
  op.token_rows = TokenRows::whole(shape.tokens);
  op.head_size = shape.head_size;
  op.rotary = options.rotary;
  op.angles = options.angles();
  op.dq = dq.matrix();
  op.dk = dk.matrix();
  if (options.with_norm) {
    op.q = q.matrix();
    op.k = k.matrix();
    op.q_gamma = q_gamma.matrix();
    op.k_gamma = k_gamma.matrix();
    op.rstd = rstd.matrix();
    op.q_gamma_sums = q_gamma_sums.matrix();
    op.k_gamma_sums = k_gamma_sums.matrix();
    op.offset = options.offset;
  }
  trial.run(op);
  trial.expect_close("dq", dq, of_q.dx, of_q.plain_dx, 3, 0x1p-21);
  trial.expect_close("dk", dk, of_k.dx, of_k.plain_dx, 3, 0x1p-21);
  if (options.with_norm) {
    trial.expect_close("q_gamma_sums", q_gamma_sums, of_q.d_gamma, of_q.plain_d_gamma, 3, 0x1p-21);
    trial.expect_close("k_gamma_sums", k_gamma_sums, of_k.d_gamma, of_k.plain_d_gamma, 3, 0x1p-21);
  }
}

void check_reference_gradient(Trial& trial, bool rotary, bool offset) {
  constexpr Shape shape{.batch = 1, .tokens = 3, .q_heads = 2, .k_heads = 1, .head_size = 4};
  const Options options{.dtype = DType::f64, .with_norm = true, .rotary = rotary, .offset = offset};
  const Operand& x = trial.input(DType::f64, 3, 8);
  const std::vector<double> gamma = trial.input(DType::f64, 1, 4).values();
  const std::vector<double> dy = trial.input(DType::f64, 3, 8).values();
  const auto loss = [&](const std::vector<double>& moved_x, const std::vector<double>& moved_gamma) {
    const auto y = forward(heads_of<double>(x.matrix(), moved_x, moved_gamma, shape), options);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const auto gradients = backward(heads_of<double>(x.matrix(), x.values(), gamma, shape), dy, options);
  trial.expect_true(
      difference_from_numeric([&](const auto& moved) { return loss(moved, gamma); }, x.values(), gradients.dx) < 1e-8,
      "dx is the derivative");
  trial.expect_true(difference_from_numeric([&](const auto& moved) { return loss(x.values(), moved); }, gamma,
                                            gradients.d_gamma) < 1e-8,
                    "d_gamma is the derivative");
}

// q and k as slices of a fused QKV matrix.
void check_slices(Trial& trial) {
  Operand& qkv = trial.in_out(DType::f32, 6, 24);
  const std::vector<double> before = qkv.values();
  QueryKeyForward op{};
  op.token_rows = TokenRows::whole(3);
  op.head_size = 4;
  op.q = op.q_out = qkv.matrix().column_range(0, 12);
  op.k = op.k_out = qkv.matrix().column_range(12, 4);
  op.rotary = true;
  op.angles.theta = theta;
  trial.run(op);
  bool v_unchanged = true;
  bool turned = false;
  for (int64_t row = 0; row < 6; ++row) {
    for (int64_t col = 0; col < 24; ++col) {
      const bool same = qkv.at(row, col) == before[static_cast<size_t>(row * 24 + col)];
      if (col >= 16) v_unchanged = v_unchanged && same;
      if (col < 16 && row % 3 > 0) turned = turned || !same;
    }
  }
  trial.expect_true(v_unchanged, "v is left alone");
  trial.expect_true(turned, "q and k are turned");
}

void bench(Trial& trial, DType dtype, int64_t rows, bool with_norm, bool backward_too) {
  constexpr int64_t tokens = 1024, size = 64, heads = 12;
  const Matrix q = trial.input(dtype, rows, heads * size).matrix();
  const Matrix k = trial.input(dtype, rows, heads * size).matrix();
  const Matrix gamma = trial.input(DType::f32, 1, size).matrix();
  const Matrix rstd = trial.in_out(DType::f32, rows, 2 * heads).matrix();
  const Matrix q_out = trial.in_out(dtype, rows, heads * size).matrix();
  const Matrix k_out = trial.in_out(dtype, rows, heads * size).matrix();
  const Matrix none;
  if (backward_too) {
    const Matrix sums = trial.in_out(DType::f64, 1, size).matrix();
    trial.time(QueryKeyBackward{.token_rows = TokenRows::whole(tokens),
                                .head_size = size,
                                .q = with_norm ? q : none,
                                .k = with_norm ? k : none,
                                .q_gamma = with_norm ? gamma : none,
                                .k_gamma = with_norm ? gamma : none,
                                .rstd = with_norm ? rstd : none,
                                .rotary = true,
                                .angles = RotaryAngles{theta},
                                .dq = q_out,
                                .dk = k_out,
                                .q_gamma_sums = with_norm ? sums : none,
                                .k_gamma_sums = with_norm ? sums : none});
  } else {
    trial.time(QueryKeyForward{.token_rows = TokenRows::whole(tokens),
                               .head_size = size,
                               .q = q,
                               .k = k,
                               .q_gamma = with_norm ? gamma : none,
                               .k_gamma = with_norm ? gamma : none,
                               .eps = eps,
                               .rotary = true,
                               .angles = RotaryAngles{theta},
                               .q_out = q_out,
                               .k_out = k_out,
                               .rstd = with_norm ? rstd : none});
  }
}

void add_cases(Suite& suite) {
  for (const Shape& shape : shapes) {
    for (const DType dtype : compute_dtypes) {
      if (dtype == DType::f16 && (shape.head_size < 38 || shape.head_size == 128)) continue;
      for (const bool with_norm : {false, true}) {
        for (const bool rotary : {false, true}) {
          const Options options{dtype, with_norm, rotary};
          const std::string name =
              fmt::format("B={} T={} H={} G={} D={}{}{} C={}", shape.batch, shape.tokens, shape.q_heads, shape.k_heads,
                          shape.head_size, with_norm ? " norm" : "", rotary ? " rotary" : "", dtype_name(dtype));
          suite.add<QueryKeyForward>(name, [=](Trial& t) { check_forward(t, shape, options, false); });
          if (!with_norm)
            suite.add<QueryKeyForward>(name + " in place", [=](Trial& t) { check_forward(t, shape, options, true); });
          suite.add<QueryKeyBackward>(name, [=](Trial& t) { check_backward(t, shape, options); });
        }
      }
    }
  }
  for (const RopeScaling scaling : {RopeScaling::linear, RopeScaling::llama3}) {
    const Options options{.dtype = DType::f32, .with_norm = false, .rotary = true, .scaling = scaling};
    const std::string name = scaling == RopeScaling::linear ? "scaled linearly" : "scaled as in Llama 3";
    suite.add<QueryKeyForward>(name, [=](Trial& t) {
      check_forward(t, {.batch = 3, .tokens = 7, .q_heads = 2, .k_heads = 2, .head_size = 38}, options, false);
    });
    suite.add<QueryKeyBackward>(name, [=](Trial& t) {
      check_backward(t, {.batch = 3, .tokens = 7, .q_heads = 2, .k_heads = 2, .head_size = 38}, options);
    });
  }
  for (const DType dtype : compute_dtypes) {
    for (const bool rotary : {false, true}) {
      const Options options{.dtype = dtype, .with_norm = true, .rotary = rotary, .offset = true};
      const std::string name = fmt::format("gains of 1 + gamma{} C={}", rotary ? " rotary" : "", dtype_name(dtype));
      suite.add<QueryKeyForward>(name, [=](Trial& t) {
        check_forward(t, {.batch = 3, .tokens = 7, .q_heads = 2, .k_heads = 1, .head_size = 64}, options, false);
      });
      suite.add<QueryKeyBackward>(name, [=](Trial& t) {
        check_backward(t, {.batch = 3, .tokens = 7, .q_heads = 2, .k_heads = 1, .head_size = 64}, options);
      });
    }
  }
  suite.add<QueryKeyForward>("slices of a QKV matrix", check_slices);
  suite.add<QueryKeyForward>("odd heads without rotary", [](Trial& t) {
    check_forward(t, {.batch = 1, .tokens = 3, .q_heads = 2, .k_heads = 1, .head_size = 5}, {DType::f32, true, false},
                  false);
  });
  suite.add<QueryKeyBackward>("odd heads without rotary", [](Trial& t) {
    check_backward(t, {.batch = 1, .tokens = 3, .q_heads = 2, .k_heads = 1, .head_size = 5}, {DType::f32, true, false});
  });
  for (const bool rotary : {false, true})
    suite.add<QueryKeyBackward>(fmt::format("derivative{}", rotary ? " rotary" : ""),
                                [=](Trial& t) { check_reference_gradient(t, rotary, !rotary); });
  suite.add<QueryKeyForward>("rejections", [](Trial& t) {
    const Operand& q = t.input(DType::f32, 2, 6);
    Operand& out = t.output(DType::f32, 2, 6);
    QueryKeyForward op{};
    op.token_rows = TokenRows::whole(2);
    op.head_size = 3;
    op.q = op.k = q.matrix();
    op.q_out = op.k_out = out.matrix();
    op.rotary = true;
    op.angles.theta = theta;
    t.expect_rejected(op, "rotary with an odd head size");
  });
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const int64_t rows = suite.bench_rows(dtype, 8192, 65536);
    for (const bool with_norm : {false, true}) {
      const std::string name =
          fmt::format("N={} H=G=12 D=64 rotary{} C={}", rows, with_norm ? " norm" : "", dtype_name(dtype));
      suite.add_bench<QueryKeyForward>(name, [=](Trial& t) { bench(t, dtype, rows, with_norm, false); });
      suite.add_bench<QueryKeyBackward>(name, [=](Trial& t) { bench(t, dtype, rows, with_norm, true); });
    }
  }
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_query_key
