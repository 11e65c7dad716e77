// Sums of sketches of gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/gradient_sum.h"

namespace gptrain::inline parallel {

// A matrix that ranks sketch. Offsets `table`, `values` and `indices` are those in a sum's buffer, in elements.
struct SketchedMatrix {
  int64_t tensor;                  // index in the spec
  int64_t first, count;            // elements from the unit's start
  int64_t residual;                // offset of its errors in a buffer of all errors, in elements
  int64_t rows, columns;           // shape of the sketch
  int64_t kept;                    // elements that are summed
  int64_t table, values, indices;  // the sketch; the elements that are summed, and their i32 indices
};

// The sketches of a unit's matrices. A sum's buffer has the tables and the plain runs, which are summed in the first
// phase, then the values of the second phase, then the indices.
struct UnitSketches final : UnitLayout {
  std::vector<SketchedMatrix> matrices;
  std::vector<PlainRun> plain;
  int64_t first_phase = 0, second_phase = 0;  // elements that ranks sum in each phase

  int64_t buffer_bytes(bool) const override { return (first_phase + 2 * second_phase) * dtype_bytes(DType::f32); }
  int phases(bool) const override { return 2; }
};

extern const GradientSum sketch_sum;

// Sums large matrices' gradients by sketches (arXiv 1903.04488, 2007.07682), all others in f32. Every rank adds the
// errors of earlier steps to its gradients X. The ranks sum count sketches of X (CountSketch), so that all have the
// sketch of the sum of X, and find the same elements with the largest estimates in it. They sum these elements of X.
// The result is this sum, and 0 elsewhere; every rank keeps X without these elements as its errors. So over steps and
// ranks
//   the sums that were applied = the sum of all gradients - the sum of the errors now.
// Estimates choose elements only: no error of theirs reaches a sum. Hash functions differ from step to step. A skipped
// step leaves errors as they were. REQUIRES: errors are kept (GradientCompression::residuals), and ZeRO 0 or 1.
std::unique_ptr<GradientReducer> make_sketch_reducer(const ReductionContext& context,
                                                     const GradientCompression& compression);

}  // namespace gptrain::parallel
