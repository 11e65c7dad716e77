#include "ops/projection.h"

#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/normal_lanes.h"
#include "ops/cpu/kernels/philox_lanes.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// Elements whose words are computed at a time: few enough for the L1 cache.
constexpr int64_t projection_span = 1024;

template <typename C>
void store_signs(C* s, const uint32_t* words, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(s + i, words[i] >> 31 != 0 ? -1.0F : 1.0F);
}

template <typename C>
void store_normals(C* s, const uint32_t* words, int64_t count) {
  float normals[projection_span];
  normals_of_words(normals, words, count);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(s + i, normals[i]);
}

PhiloxCounters counters_of(PhiloxKey key, int64_t token, int64_t sample_id) {
  const auto sample = static_cast<uint64_t>(sample_id);
  return {key.k0, key.k1, static_cast<uint32_t>(token), static_cast<uint32_t>(sample),
          static_cast<uint32_t>(sample >> 32)};
}

// Computes rows [first, end) of a sequence that begins at row `begin`.
template <typename C>
void store_cosines(const ProjectionMatrix& op, int64_t begin, int64_t first, int64_t end) {
  const int64_t sample = op.sample_ids[TokenRows::whole(op.sequence_length).sequence(begin)];
  const float unit = 1.57079633F / static_cast<float>(op.sequence_length);
  uint32_t words[projection_span + 4 * philox_counters];
  SampledRow frequencies[projection_span / 4];
  for (int64_t column = 0; column < op.s.cols; column += projection_span / 4) {
    const int64_t left = op.s.cols - column;
    const int64_t count = left < projection_span / 4 ? left : projection_span / 4;
    for (int64_t n = 0; n < count; n += philox_counters)
      philox_words(words + 4 * n, counters_of(op.key, dct_choice, sample), static_cast<uint32_t>(column + n));
    for (int64_t i = 0; i < count; ++i)
      frequencies[i] = sampled_row(op.sequence_length, op.s.cols, column + i, words[4 * i]);
    for (int64_t row = first; row < end; ++row) {
      uint32_t sign[4 * philox_counters];
      philox_words(sign, counters_of(op.key, row - begin, sample), 0);
      C* s = row_of<C>(op.s, row) + column;
      for (int64_t i = 0; i < count; ++i) {
        const DctElement element = dct_element(op.sequence_length, op.s.cols, frequencies[i], row - begin);
        const float cosine = __builtin_cosf(unit * static_cast<float>(element.turn));
        const float value = __builtin_sqrtf(element.squared_factor) * cosine;
        store(s + i, sign[0] >> 31 != 0 ? -value : value);
      }
    }
  }
}

}  // namespace

void projection_matrix(const ProjectionMatrix& op, int64_t first_row, int64_t end_row) {
  const TokenRows sequences = TokenRows::whole(op.sequence_length);
  with_type(op.s.dtype, [&](auto type) {
    using C = decltype(type);
    if (op.kind == ProjectionKind::dct) {
      for (int64_t row = first_row; row < end_row;) {
        const int64_t begin = sequences.sequence(row) * op.sequence_length;
        const int64_t end = begin + op.sequence_length < end_row ? begin + op.sequence_length : end_row;
        store_cosines<C>(op, begin, row, end);
        row = end;
      }
      return;
    }
    uint32_t words[projection_span + 4 * philox_counters];
    for (int64_t row = first_row; row < end_row; ++row) {
      const PhiloxCounters counters = counters_of(op.key, sequences.token(row), op.sample_ids[sequences.sequence(row)]);
      for (int64_t first = 0; first < op.s.cols; first += projection_span) {
        const int64_t left = op.s.cols - first;
        const int64_t count = left < projection_span ? left : projection_span;
        for (int64_t n = 0; n < count; n += 4 * philox_counters)
          philox_words(words + n, counters, static_cast<uint32_t>((first + n) / 4));
        C* s = row_of<C>(op.s, row) + first;
        if (op.kind == ProjectionKind::gauss) {
          store_normals(s, words, count);
        } else {
          store_signs(s, words, count);
        }
      }
    }
  });
}

void sample_rows(const SampleRows& op, int64_t first_row, int64_t end_row) {
  const int64_t runs = op.y.rows / TokenRows::whole(op.sequence_length).sequence(op.x.rows);
  with_type(op.x.dtype, [&](auto type) {
    using C = decltype(type);
    uint32_t words[4 * philox_counters];
    for (int64_t row = first_row; row < end_row; ++row) {
      const int64_t sequence = row / runs, j = row % runs;
      philox_words(words, counters_of(op.key, 0, op.sample_ids[sequence]), static_cast<uint32_t>(j));
      const SampledRow sampled = sampled_row(op.sequence_length, runs, j, words[0]);
      const float factor = __builtin_sqrtf(static_cast<float>(sampled.run));
      const C* x = row_of<C>(op.x, sequence * op.sequence_length + sampled.row);
      C* y = row_of<C>(op.y, row);
#pragma omp simd
      for (int64_t i = 0; i < op.x.cols; ++i) store(y + i, factor * load(x + i));
    }
  });
}

}  // namespace gptrain::ops::GPTRAIN_ISA
