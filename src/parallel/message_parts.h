// Parts that all sums of gradients in messages share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/backend.h"
#include "parallel/gradient_messages.h"
#include "parallel/gradient_reducer.h"

namespace gptrain::inline parallel {

// Elements of a unit that lie together and are summed as they are, in f32.
struct PlainRun {
  int64_t first, count;  // elements from the unit's start
  int64_t at;            // offset in a sum's buffer, in elements
};

// Returns `elements` rounded up to whole multiples of unit_multiple.
int64_t whole_units(int64_t elements);

// Lays out the elements of a unit that are not coded and summed as they are, from the offset `at` on, which it moves
// on. REQUIRES: `coded` is in the order of elements.
std::vector<PlainRun> plain_runs(const std::vector<CodedTensor>& coded, int64_t elements, int64_t& at);

// Sums of momenta in place of gradients, and the column of the optimizer's state that they read.
struct MomentumSums {
  double beta1;
  size_t moment;  // first moments, the same on all ranks
};

// Factors of low rank that a step sums.
enum class FactorSums : uint8_t { both, left, right };

// The messages of a rank's sums, and the memory of their errors, all borrowed.
struct GradientCompression {
  const GradientMessages& messages;
  std::byte* residuals;  // errors of the steps so far, GradientMessages::residual_bytes; null: no error feedback
  std::byte* errors;     // errors that this step leaves, as many; null in the same case
  const StepState* state;
  int64_t rank = 0;                          // vectors of a factor; 0: there are no factors
  FactorSums factors = FactorSums::both;     // `left` and `right` alternate from step to step
  uint64_t seed = 0;                         // seed of the factors with which a run begins
  std::optional<MomentumSums> momenta = {};  // empty: gradients are summed
  // Column of the optimizer's state with the errors of this rank's codes of sums, in its piece; other pieces are
  // scratch. Empty: they join its other errors.
  std::optional<size_t> server_errors = {};
};

// Returns `count` f32 elements of a buffer as one row.
Matrix floats(std::byte* buffer, int64_t first, int64_t count);

// Copies elements that are summed as they are from a unit's gradients into the sum's buffer, or the sums back.
void copy_plain_runs(Backend& backend, const std::vector<PlainRun>& runs, const UnitGradients& of, bool to_sum);

// Replaces the errors of a unit's earlier steps by those that this step leaves, unless the step is skipped.
void keep_errors(Backend& backend, const GradientCompression& compression, int64_t unit);

}  // namespace gptrain::parallel
