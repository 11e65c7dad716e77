// What a chain of units keeps of a forward pass, what it runs again and what it copies to the host and back, in the least
// time within some bytes: the optimal persistent schedule (Herrmann, Beaumont, Eyraud-Dubois et al., arXiv 1911.13214), by
// dynamic programming over unequal units, with a price on each byte that is copied. Persistent: what is kept stays until
// the backward pass that reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "schedule/step_choices.h"

namespace gptrain {

// A unit of the chain, in forward order.
struct ChainUnit {
  int64_t output_bytes = 0;    // the stream that leaves it
  int64_t saved_bytes = 0;     // what its backward pass reads beside its input
  int64_t backward_bytes = 0;  // what is there beside that in its backward pass: gradients on both sides
  double forward_seconds = 0;  // its forward pass again, with its output
  double saved_seconds = 0;    // again for what it saves alone
  // A part of what it saves may be kept, from which the rest is made again before its backward pass. Negative: it has
  // no such part.
  int64_t part_bytes = -1;  // that are kept
  int64_t rest_bytes = 0;   // that are made again
  double rest_seconds = 0;
  bool always_kept = false;  // what it saves is kept of the forward pass, and it is never run again
  // Of a byte that is copied to the host and back, as the solver weighs it; negative: the unit is never offloaded.
  double copy_seconds = -1;

  int64_t written_bytes() const;  // by its forward pass, beside the output
};

struct Chain {
  std::vector<ChainUnit> units;
  int64_t input_bytes = 0;     // of the first unit, which others hold
  int64_t gradient_bytes = 0;  // of the stream's gradient, which is there while units are run again
  // Micro-batches between their forward and their backward pass, this one included.
  int64_t in_flight = 1;
};

// Of all that is run again.
double seconds_again(const Chain& chain, const UnitChoices& choices);

// Finds the choices that take the least time within some bytes. Bytes are counted in pieces of one part of `resolution` of
// the most that will be asked for, rounded up: exact where that is so many bytes. Of chains of more than 128 units, no more
// than 64 are run again from one input.
class ChainSolver {
 public:
  ChainSolver(const Chain& chain, int64_t most_bytes, int32_t resolution = 500);
  ~ChainSolver();
  ChainSolver(ChainSolver&&) noexcept;

  // Of choices whose peak is at most so many bytes; none where there are none. `price`: of what is copied, a factor of
  // the units' copy_seconds; none: nothing is. When copies go and come is left to the caller.
  std::optional<UnitChoices> best(int64_t budget_bytes, std::optional<double> price = {});

 private:
  class Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace gptrain
