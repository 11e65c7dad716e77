// Sums of gradients as factors of low rank.
#pragma once

#include <memory>

#include "parallel/gradient_reducer.h"
#include "parallel/message_parts.h"

namespace gptrain::inline parallel {

// Sums of large matrices' gradients by PowerSGD (arXiv 1905.13727), of all others in f32. Every rank adds the errors of
// earlier steps to its gradients X. With S the factor R of the last step, orthonormalised, the ranks sum L = X S and
// orthonormalise it, then sum R = X^T L. The result is L R^T, the projection of the sum of all X onto the columns of L.
// Every rank keeps X less an equal share of L R^T as its errors. So over steps and ranks
//   the sums that were applied = the sum of all gradients - the sum of the errors now.
// A run begins with a random S. A skipped step leaves errors and factors as they were. Ranks multiply L by R^T each for
// itself: they need the same number of threads for the same bits. REQUIRES: errors are kept
// (GradientCompression::residuals), ZeRO 0 or 1, and one tensor rank.
std::unique_ptr<GradientReducer> make_low_rank_reducer(const ReductionContext& context,
                                                       const GradientCompression& compression);

}  // namespace gptrain::parallel
