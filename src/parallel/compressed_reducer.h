// Sums of compressed gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "parallel/gradient_messages.h"
#include "parallel/gradient_reducer.h"

namespace gptrain::inline parallel {

// Sums of momenta in place of gradients, and the column of the optimizer's state that they read.
struct MomentumSums {
  double beta1;
  size_t moment;  // first moments, the same on all ranks
};

// The messages of a rank's sums, and the memory of their errors, all borrowed.
struct GradientCompression {
  const GradientMessages& messages;
  std::byte* residuals;  // errors of the steps so far, GradientMessages::residual_bytes; null: errors are not kept
  std::byte* errors;     // errors that this step leaves, as many; null in the same case
  const StepState* state;
  int64_t rank = 0;                          // vectors of a factor; 0: there are no factors
  uint64_t seed = 0;                         // seed of the factors with which a run begins
  std::optional<MomentumSums> momenta = {};  // empty: gradients are summed
  // Column of the optimizer's state with the errors of this rank's codes of sums, in its piece; other pieces are
  // scratch. Empty: they join its other errors.
  std::optional<size_t> server_errors = {};
};

// Sums of large matrices' gradients in 8, 4 or 1 bits (ops/block_codes.h), of all others in f32. Every rank adds the
// errors of earlier steps to its gradients, codes them, and sends each other rank the codes of that rank's piece. The
// receiver decodes them and adds them up in rank order, in f32. With ZeRO 0 it codes its sum again, and all ranks
// decode the sums of all. So a step leaves the sum of all ranks' gradients, less the errors that the ranks keep:
//   sum over steps of the decoded sums = sum over steps of all gradients - sum over ranks of the errors now.
// A skipped step leaves the errors as they were.
//
// With momenta (1-bit Adam, arXiv 2102.02888) the ranks sum their shares of the next first moment m of units with coded
// elements: beta1 m / ranks + (1 - beta1) gradients. With server_errors, the error of a coded sum stays with the rank
// that coded it, and is added to its next sum of the same elements. REQUIRES: ZeRO 0 and kept errors with momenta or
// server_errors.
std::unique_ptr<GradientReducer> make_compressed_reducer(const ReductionContext& context,
                                                         const GradientCompression& compression);

// Returns the reducer of steps in which ranks train alone (zero-one-adam). Units with coded elements keep the rank's
// own gradients, of a loss that is the mean over its part of the batch. All others get the mean of the ranks'
// gradients.
std::unique_ptr<GradientReducer> make_lone_reducer(const ReductionContext& context, const GradientMessages& messages);

}  // namespace gptrain::parallel
