// Random projections of rows, and the bias gradient beside them (ops/projection.h).
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <vector>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::cases_projection {
namespace {

constexpr ProjectionKind matrix_kinds[] = {ProjectionKind::gauss, ProjectionKind::rademacher, ProjectionKind::dct};
constexpr std::string_view name_of(ProjectionKind kind) { return projection_names[kind]; }

constexpr PhiloxKey key{0x12345678U, 0x9abcdef0U};

std::array<uint32_t, 4> words(int64_t first, int64_t second, int64_t sample) {
  const auto number = static_cast<uint64_t>(sample);
  return reference_philox({static_cast<uint32_t>(first), static_cast<uint32_t>(second), static_cast<uint32_t>(number),
                           static_cast<uint32_t>(number >> 32)},
                          {key.k0, key.k1});
}

// Returns sample numbers above 2^32, so that both halves are used.
std::vector<int64_t> samples(Trial& trial, int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(trial.random.below(int64_t{1} << 40));
  return ids;
}

// Returns an element of the orthonormal discrete cosine transform.
double cosine(int64_t frequency, int64_t token, int64_t tokens) {
  const auto t = static_cast<double>(tokens);
  const double angle = M_PI * static_cast<double>(frequency * (2 * token + 1)) / (2 * t);
  return std::sqrt((frequency == 0 ? 1 : 2) / t) * std::cos(angle);
}

double matrix_element(ProjectionKind kind, int64_t sample, int64_t token, int64_t j, int64_t tokens, int64_t k) {
  if (kind == ProjectionKind::dct) {
    const int64_t first = j * tokens / k, run = (j + 1) * tokens / k - first;
    const double share = static_cast<double>(words(j, 0xffffffff, sample)[0]) / 0x1p32;
    const int64_t frequency = first + static_cast<int64_t>(share * static_cast<double>(run));
    const double sign = words(0, token, sample)[0] >> 31 != 0 ? -1 : 1;
    return sign * std::sqrt(static_cast<double>(k * run)) * cosine(frequency, token, tokens);
  }
  const auto drawn = words(j / 4, token, sample);
  if (kind == ProjectionKind::rademacher) return drawn[static_cast<size_t>(j % 4)] >> 31 != 0 ? -1 : 1;
  const auto pair = static_cast<size_t>(j % 4 / 2 * 2);
  const double u = (static_cast<double>(drawn[pair] >> 8) + 1) / 0x1p24;
  const double angle = 2 * M_PI * static_cast<double>(drawn[pair + 1] >> 8) / 0x1p24;
  return std::sqrt(-2 * std::log(u)) * (j % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

void check_matrix(Trial& trial, ProjectionKind kind, int64_t batch, int64_t tokens, int64_t cols, DType dtype) {
  const std::vector<int64_t> ids = samples(trial, batch);
  Operand& s = trial.output(dtype, batch * tokens, cols, 3);
  trial.run(ProjectionMatrix{.kind = kind,
                             .key = key,
                             .sample_ids = Trial::pointer<const int64_t>(trial.input_array(ids)),
                             .sequence_length = tokens,
                             .s = s.matrix()});
  std::vector<double> expected;
  for (int64_t row = 0; row < batch * tokens; ++row)
    for (int64_t j = 0; j < cols; ++j)
      expected.push_back(matrix_element(kind, ids[static_cast<size_t>(row / tokens)], row % tokens, j, tokens, cols));
  if (kind == ProjectionKind::rademacher) return trial.expect_equal("s", s, expected);
  // The largest radius or factor is below 6; an f32 angle below 2 pi is off by half a place, 2^-22, or a little more.
  trial.expect_near("s", s, expected, 6 * 0x1p-20);
}

void check_rows(Trial& trial, int64_t batch, int64_t tokens, int64_t runs, int64_t cols, DType dtype) {
  const std::vector<int64_t> ids = samples(trial, batch);
  const Operand& x = trial.input(dtype, batch * tokens, cols, 1, 2);
  Operand& y = trial.output(dtype, batch * runs, cols, 1);
  trial.run(SampleRows{.key = key,
                       .sample_ids = Trial::pointer<const int64_t>(trial.input_array(ids)),
                       .sequence_length = tokens,
                       .x = x.matrix(),
                       .y = y.matrix()});
  std::vector<double> expected;
  for (int64_t row = 0; row < batch * runs; ++row) {
    const int64_t sequence = row / runs, j = row % runs;
    const int64_t first = j * tokens / runs, run = (j + 1) * tokens / runs - first;
    const double share = static_cast<double>(words(j, 0, ids[static_cast<size_t>(sequence)])[0]) / 0x1p32;
    const auto chosen = static_cast<int64_t>(share * static_cast<double>(run));
    for (int64_t col = 0; col < cols; ++col)
      expected.push_back(std::sqrt(static_cast<double>(run)) * x.at(sequence * tokens + first + chosen, col));
  }
  trial.expect_near("y", y, expected, 1e-6);
}

// Checks E[S S^T] = 1, which makes the gradient's estimate unbiased. Over 8192 samples with independent S, the mean of
// each element of S S^T must be within 6 known standard deviations of the identity's. For a correct projection one of
// the 78 elements is outside with a probability of at most 2e-7.
void check_unbiased(Trial& trial, ProjectionKind kind) {
  constexpr int64_t num_samples = 8192, tokens = 12, k = 5, runs = 5;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < num_samples; ++i) ids.push_back(i);
  const int64_t* const sample_ids = Trial::pointer<const int64_t>(trial.input_array(ids));
  std::vector<double> mean(tokens * tokens);
  if (kind == ProjectionKind::rows) {
    std::vector<double> identity(static_cast<size_t>(num_samples * tokens * tokens));
    for (int64_t row = 0; row < num_samples * tokens; ++row)
      identity[static_cast<size_t>(row * tokens + row % tokens)] = 1;
    const Operand& x = trial.input(DType::f32, num_samples * tokens, tokens, identity);
    Operand& y = trial.output(DType::f32, num_samples * runs, tokens);
    trial.run(
        SampleRows{.key = key, .sample_ids = sample_ids, .sequence_length = tokens, .x = x.matrix(), .y = y.matrix()});
    for (int64_t row = 0; row < num_samples * runs; ++row)
      for (int64_t a = 0; a < tokens; ++a)
        for (int64_t b = 0; b < tokens; ++b)
          mean[static_cast<size_t>(a * tokens + b)] += y.at(row, a) * y.at(row, b) / num_samples;
  } else {
    Operand& s = trial.output(DType::f32, num_samples * tokens, k);
    trial.run(ProjectionMatrix{
        .kind = kind, .key = key, .sample_ids = sample_ids, .sequence_length = tokens, .s = s.matrix()});
    for (int64_t sample = 0; sample < num_samples; ++sample)
      for (int64_t a = 0; a < tokens; ++a)
        for (int64_t b = 0; b < tokens; ++b)
          for (int64_t j = 0; j < k; ++j)
            mean[static_cast<size_t>(a * tokens + b)] +=
                s.at(sample * tokens + a, j) * s.at(sample * tokens + b, j) / (k * num_samples);
  }
  for (int64_t a = 0; a < tokens; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      // Per sample: for signs, S S^T has ones on its diagonal; for normal numbers it is chi squared / k; a row out of a
      // run of n is n with a probability of 1 / n, and two rows never come from one run.
      double variance = 0;
      if (kind == ProjectionKind::gauss) variance = a == b ? 2.0 / k : 1.0 / k;
      if (kind == ProjectionKind::rademacher && a != b) variance = 1.0 / k;
      // A frequency out of a run of n is n times the product of its cosines, with a probability of 1 / n.
      for (int64_t j = 0; kind == ProjectionKind::dct && j < k; ++j) {
        const int64_t first = j * tokens / k, end = (j + 1) * tokens / k;
        double sum = 0, squares = 0;
        for (int64_t f = first; f < end; ++f) {
          const double product = cosine(f, a, tokens) * cosine(f, b, tokens);
          sum += product;
          squares += product * product * static_cast<double>(end - first);
        }
        variance += squares - sum * sum;
      }
      if (kind == ProjectionKind::rows && a == b) {
        int64_t j = 0;
        while ((j + 1) * tokens / runs <= a) ++j;
        variance = static_cast<double>((j + 1) * tokens / runs - j * tokens / runs - 1);
      }
      const double off = std::abs(mean[static_cast<size_t>(a * tokens + b)] - (a == b ? 1 : 0));
      trial.expect_true(off <= 6 * std::sqrt(variance / num_samples) + 1e-6,
                        fmt::format("element ({}, {}) of the mean is {} off", a, b, off));
    }
  }
}

void check_bias(Trial& trial, int64_t rows, int64_t cols, DType dtype, bool accumulate) {
  const Operand& dy = trial.input(dtype, rows, cols, 1, 3);
  Operand& d_bias = accumulate ? trial.in_out(DType::f32, 1, cols) : trial.output(DType::f32, 1, cols);
  std::vector<double> expected(static_cast<size_t>(cols));
  for (int64_t col = 0; col < cols; ++col) {
    double sum = accumulate ? d_bias.at(0, col) : 0;
    for (int64_t row = 0; row < rows; ++row) sum += dy.at(row, col);
    expected[static_cast<size_t>(col)] = sum;
  }
  trial.run(BiasGradient{dy.matrix(), d_bias.matrix(), accumulate});
  trial.expect_near("d_bias", d_bias, expected, static_cast<double>(rows) * 4 * 0x1p-22);
}

void check_rejections(Trial& trial) {
  const Operand& x = trial.input(DType::f32, 6, 4);
  Operand& three = trial.output(DType::f32, 3, 4);
  Operand& eight = trial.output(DType::f32, 8, 4);
  Operand& narrow = trial.output(DType::f32, 1, 3);
  const int64_t* const ids = Trial::pointer<const int64_t>(trial.input_array(std::vector<int64_t>{1, 2}));
  const auto matrix = [&](ProjectionKind kind, const int64_t* sample_ids, int64_t tokens) {
    return ProjectionMatrix{
        .kind = kind, .key = key, .sample_ids = sample_ids, .sequence_length = tokens, .s = eight.matrix()};
  };
  trial.expect_rejected(matrix(ProjectionKind::rows, ids, 4), "a matrix of rows");
  trial.expect_rejected(matrix(ProjectionKind::dct, ids, 2), "more frequencies than tokens");
  trial.expect_rejected(matrix(ProjectionKind::gauss, nullptr, 4), "no samples");
  trial.expect_rejected(matrix(ProjectionKind::gauss, ids, 3), "half a sequence");
  const auto rows = [&](const int64_t* sample_ids, int64_t tokens, const Operand& y) {
    return SampleRows{
        .key = key, .sample_ids = sample_ids, .sequence_length = tokens, .x = x.matrix(), .y = y.matrix()};
  };
  trial.expect_rejected(rows(nullptr, 3, three), "no samples");
  trial.expect_rejected(rows(ids, 4, three), "half a sequence");
  trial.expect_rejected(rows(ids, 3, three), "other rows of one sequence than of the other");
  trial.expect_rejected(rows(ids, 3, eight), "more rows than there are");
  trial.expect_rejected(BiasGradient{x.matrix(), narrow.matrix(), false}, "a bias of fewer columns");
}

void add_benches(Suite& suite, DType dtype) {
  constexpr int64_t tokens = 1024, k = 208, batch = 4;
  for (const ProjectionKind kind : matrix_kinds) {
    const std::string name = fmt::format("{} N=4096 k=208 {}", name_of(kind), dtype_name(dtype));
    suite.add_bench<ProjectionMatrix>(name, [=](Trial& t) {
      const std::vector<int64_t> ids = samples(t, batch);
      t.time(ProjectionMatrix{.kind = kind,
                              .key = key,
                              .sample_ids = Trial::pointer<const int64_t>(t.input_array(ids)),
                              .sequence_length = tokens,
                              .s = t.output(dtype, batch * tokens, k).matrix()});
    });
  }
  suite.add_bench<SampleRows>(fmt::format("N=4096 k=208 cols=3072 {}", dtype_name(dtype)), [=](Trial& t) {
    const std::vector<int64_t> ids = samples(t, batch);
    t.time(SampleRows{.key = key,
                      .sample_ids = Trial::pointer<const int64_t>(t.input_array(ids)),
                      .sequence_length = tokens,
                      .x = t.input(dtype, batch * tokens, 3072).matrix(),
                      .y = t.output(dtype, batch * k, 3072).matrix()});
  });
  suite.add_bench<BiasGradient>(fmt::format("N=4096 out=3072 {}", dtype_name(dtype)), [=](Trial& t) {
    t.time(BiasGradient{t.input(dtype, 4096, 3072).matrix(), t.in_out(DType::f32, 1, 3072).matrix(), true});
  });
}

void add_cases(Suite& suite) {
  for (const DType dtype : compute_dtypes) {
    int64_t index = 0;
    for (const auto& [tokens, k] : {std::pair<int64_t, int64_t>{1, 1}, {7, 3}, {20, 8}, {3, 1035}, {300, 261}}) {
      const auto t = tokens, columns = k;
      if (is_left_out(dtype, index++)) continue;
      for (const ProjectionKind kind : matrix_kinds) {
        if (kind == ProjectionKind::dct && columns > t) continue;
        suite.add<ProjectionMatrix>(fmt::format("{} B=2 T={} k={} {}", name_of(kind), t, columns, dtype_name(dtype)),
                                    [=](Trial& trial) { check_matrix(trial, kind, 2, t, columns, dtype); });
      }
    }
    index = 0;
    for (const auto& [tokens, runs, cols] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {19, 4, 40}, {24, 24, 7}, {64, 13, 31}}) {
      const auto t = tokens, r = runs, c = cols;
      if (is_left_out(dtype, index++)) continue;
      suite.add<SampleRows>(fmt::format("B=3 T={} k={} cols={} {}", t, r, c, dtype_name(dtype)),
                            [=](Trial& trial) { check_rows(trial, 3, t, r, c, dtype); });
    }
    for (const bool accumulate : {false, true})
      suite.add<BiasGradient>(fmt::format("N=77 out=131 {}{}", dtype_name(dtype), accumulate ? " accumulate" : ""),
                              [=](Trial& trial) { check_bias(trial, 77, 131, dtype, accumulate); });
    add_benches(suite, dtype);
  }
  for (const ProjectionKind kind : matrix_kinds)
    suite.add<ProjectionMatrix>(std::string(name_of(kind)) + " is unbiased",
                                [=](Trial& t) { check_unbiased(t, kind); });
  suite.add<SampleRows>("rows are unbiased", [](Trial& t) { check_unbiased(t, ProjectionKind::rows); });
  suite.add<ProjectionMatrix>("rejections", check_rejections);
}

const Registration registration(add_cases);

}  // namespace
}  // namespace gptrain::ops_test::cases_projection
