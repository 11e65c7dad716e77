// Sums of the largest elements of gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/gradient_sum.h"

namespace gptrain::inline parallel {

// A matrix of which each rank sends its largest elements.
struct SparseMatrix {
  int64_t tensor;           // index in the spec
  int64_t first, count;     // elements from the unit's start
  int64_t residual;         // offset of its errors in a buffer of all errors, in elements
  int64_t kept;             // elements that a rank sends
  int64_t indices, values;  // bytes from a message's start
};

// The unit's matrices of which ranks send elements. A sum's buffer has the plain runs, the rank's message, and those of
// all ranks.
struct UnitSparse final : UnitLayout {
  std::vector<SparseMatrix> matrices;
  std::vector<PlainRun> plain;
  int64_t plain_elements = 0;
  int64_t message_bytes = 0;
  int64_t ranks = 0;

  int64_t own_message() const { return plain_elements * dtype_bytes(DType::f32); }
  int64_t message_of(int64_t rank) const { return own_message() + (1 + rank) * message_bytes; }
  int64_t buffer_bytes(bool) const override { return message_of(ranks); }
  int phases(bool) const override { return 1; }
};

extern const GradientSum sparse_sum;

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
