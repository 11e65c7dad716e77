// Sums of compressed gradients.
#pragma once

#include <memory>

#include "parallel/gradient_reducer.h"
#include "parallel/message_parts.h"

namespace gptrain::inline parallel {

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
