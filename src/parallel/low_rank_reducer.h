// Sums of gradients as factors of low rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/gradient_sum.h"

namespace gptrain::inline parallel {

// A matrix that is summed as two factors.
struct LowRankMatrix {
  int64_t tensor;       // index in the spec
  int64_t first;        // elements from the unit's start
  int64_t rows, cols;   // padding included
  int64_t residual;     // offset of its errors in a buffer of all errors, in elements
  int64_t factor;       // offset in that buffer of the last sum's right factor or, if it alternates, of both
  int64_t left, right;  // offsets of the factors in a sum's buffer, in elements
};

// The factors of a unit's matrices. A sum's buffer has all left factors and plain runs, then all right factors.
struct UnitFactors final : UnitLayout {
  std::vector<LowRankMatrix> matrices;
  std::vector<PlainRun> plain;
  int64_t first_phase = 0, second_phase = 0;  // elements that ranks sum in each phase
  int64_t first_plain = 0;                    // offset of the plain runs, which end the first phase
  bool alternates = false;                    // a step sums one factor only

  int64_t buffer_bytes(bool) const override { return (first_phase + second_phase) * dtype_bytes(DType::f32); }
  int phases(bool) const override { return alternates ? 1 : 2; }
};

extern const GradientSum low_rank_sum;

// Sums of large matrices' gradients by PowerSGD (arXiv 1905.13727), of all others in f32. Every rank adds the errors of
// earlier steps to its gradients X. With S the factor R of the last step, orthonormalised, the ranks sum L = X S and
// orthonormalise it, then sum R = X^T L. The result is L R^T, the projection of the sum of all X onto the columns of L.
// Every rank keeps X less an equal share of L R^T as its errors. So over steps and ranks
//   the sums that were applied = the sum of all gradients - the sum of the errors now.
// With FactorSums::left a step ends with L = X S, and the result is L S^T. The next one, with FactorSums::right, makes
// that L orthonormal, sums R = X^T L, and the result is L R^T (alternating factors, as in GradZIP).
// A run begins with a random S. A skipped step leaves errors and factors as they were. Ranks multiply L by R^T each for
// itself: they need the same number of threads for the same bits. REQUIRES: errors are kept
// (GradientCompression::residuals), ZeRO 0 or 1, and one tensor rank.
std::unique_ptr<GradientReducer> make_low_rank_reducer(const ReductionContext& context,
                                                       const GradientCompression& compression);

}  // namespace gptrain::parallel
