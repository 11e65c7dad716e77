// Sums of the largest elements of gradients.
#pragma once

#include <memory>

#include "parallel/gradient_reducer.h"
#include "parallel/message_parts.h"

namespace gptrain::inline parallel {

// Sums large matrices' gradients by their largest elements (top-k with error feedback, arXiv 1809.07599), all others in
// f32. Every rank adds the errors of earlier steps to its gradients X, sends the elements of X that SelectLargest
// selects to all ranks, with their indices, and keeps the others as its errors. The result is the sum of the elements
// that were sent, added up in rank order. So over steps and ranks
//   the sums that were applied = the sum of all gradients - the sum of the errors now.
// Each rank sends its elements to all others, so that bytes grow with the ranks. A skipped step leaves errors as they
// were. REQUIRES: errors are kept (GradientCompression::residuals), and ZeRO 0 or 1.
std::unique_ptr<GradientReducer> make_sparse_reducer(const ReductionContext& context,
                                                     const GradientCompression& compression);

}  // namespace gptrain::parallel
