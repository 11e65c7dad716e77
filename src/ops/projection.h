// Random projections of rows, from which the gradient of a weight is estimated (Bershatsky et al., arXiv 2201.13195):
// with E[S S^T] = 1, the expectation of (S^T dy)^T (S^T x) is dy^T x. S is never stored but generated each time it is
// needed.
//
// Each sequence of T tokens has its own S, [T, k]. The elements depend on the key, the sequence's global sample number
// and the position in S only, so the estimate for a sample does not depend on the rest of its micro-batch.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/kinds.h"
#include "base/matrix.h"
#include "base/philox.h"
#include "base/token_rows.h"

namespace gptrain::inline ops {

// s = sqrt(k) S of all sequences, one below the other. gauss: normal numbers; rademacher: 1 or -1. Element (token, j)
// uses word j % 4 of philox(key, {j / 4, token, low(sample), high(sample)}): the sign is its highest bit; words 2 i and
// 2 i + 1 give two normal numbers (Box and Muller). dct: each token has the sign of rademacher's element (token, 0),
// and column j is the cosine of one frequency of the discrete cosine transform (dct_element). The frequency is chosen
// as SampleRows chooses the row of run j, but by philox(key, {j, 2^32 - 1, ..}).
struct ProjectionMatrix {
  static constexpr std::string_view name = "projection_matrix";
  ProjectionKind kind;  // not rows
  PhiloxKey key;
  const int64_t* sample_ids;  // device memory, one for each sequence
  int64_t sequence_length;    // T
  Matrix s;                   // [B T, k] f32, bf16 or f16, out
};

// y = S^T x where S samples rows. The rows of a sequence are cut into k runs of neighbours, as equal as possible; each
// run gives one of its rows, times the square root of its length. Run j uses word 0 of philox(key, {j, 0, low(sample),
// high(sample)}); its rows are equally likely up to 32 bits.
struct SampleRows {
  static constexpr std::string_view name = "sample_rows";
  PhiloxKey key;
  const int64_t* sample_ids;  // device memory, one for each sequence
  int64_t sequence_length;    // T
  Matrix x;                   // [B T, cols] f32, bf16 or f16
  Matrix y;                   // [B k, cols] like x, out; k <= T
};

// d_bias (+)= column sums of dy: the part of LinearBackwardWeight that is not estimated by projections.
struct BiasGradient {
  static constexpr std::string_view name = "bias_gradient";
  Matrix dy;      // [N, out] C
  Matrix d_bias;  // [1, out] f32
  bool accumulate;
};

// Row that SampleRows takes from a run, and the run's length in rows.
struct SampledRow {
  int64_t row, run;
};
constexpr SampledRow sampled_row(int64_t tokens, int64_t runs, int64_t j, uint32_t word) {
  const int64_t first = j * tokens / runs;
  const int64_t run = (j + 1) * tokens / runs - first;
  return {first + static_cast<int64_t>(static_cast<uint64_t>(word) * static_cast<uint64_t>(run) >> 32), run};
}

// Element of a column of dct: sqrt(squared_factor) * cos(angle). `turn` is the angle in units of 1 / (4 tokens) of a
// full turn. squared_factor is that of the orthonormal transform over `tokens`, times the run's length and the number
// of runs k.
struct DctElement {
  float squared_factor;
  int64_t turn;
};
constexpr DctElement dct_element(int64_t tokens, int64_t runs, const SampledRow& frequency, int64_t token) {
  const float squared =
      static_cast<float>((frequency.row == 0 ? 1 : 2) * frequency.run * runs) / static_cast<float>(tokens);
  return {squared, frequency.row * (2 * token + 1) % (4 * tokens)};
}
constexpr uint32_t dct_choice = 0xffffffffU;

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_PROJECTION(X) X(ProjectionMatrix) X(SampleRows) X(BiasGradient)
