// Chooses for a chain of units the values of a forward pass to keep, to recompute and to copy to the host and back,
// such that a step takes the least time within a budget of bytes. This is the optimal persistent schedule (Herrmann,
// Beaumont, Eyraud-Dubois et al., arXiv 1911.13214) by dynamic programming over unequal units, extended by a price on
// each byte that is copied. Persistent: a value that is saved stays until the backward pass that reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "schedule/step_choices.h"

namespace gptrain::inline schedule {

// Memory and time of a unit of the chain.
struct ChainUnit {
  int64_t output_bytes = 0;    // the residual stream that leaves the unit
  int64_t saved_bytes = 0;     // values that its backward pass reads, except its input
  int64_t backward_bytes = 0;  // gradients in its backward pass: of its input and output, and BufferKind::gradients
  double forward_seconds = 0;  // recomputing its forward pass, with its output
  double saved_seconds = 0;    // recomputing its forward pass only for the saved values
  // The unit may keep a part of its saved values and recompute the rest from it before its backward pass.
  int64_t part_bytes = -1;  // the part; negative: the unit has no such part
  int64_t rest_bytes = 0;
  double rest_seconds = 0;
  bool always_saved = false;  // the unit is never recomputed
  // Cost of copying a byte to the host and back, which the solver multiplies by its price. Negative: the unit is never
  // offloaded.
  double copy_seconds = -1;

  int64_t written_bytes() const;  // bytes that its forward pass writes, except the output
  bool operator==(const ChainUnit&) const = default;
};

struct Chain {
  std::vector<ChainUnit> units;  // in forward order
  int64_t input_bytes = 0;       // input of the first unit: counts in the time of its copy, not in the budget
  int64_t gradient_bytes = 0;    // gradient of the residual stream, alive while units are recomputed
  // Micro-batches between forward and backward pass at one time, at least 1.
  int64_t in_flight = 1;

  bool operator==(const Chain&) const = default;
};

// Returns the seconds that the choices' recomputation takes.
double recompute_seconds(const Chain& chain, const UnitChoices& choices);

// Finds the choices that take the least time within a budget. Memory is counted in pieces of most_bytes / resolution
// bytes, rounded up; it is exact if a piece is one byte. In chains of more than 128 units, at most 64 units are
// recomputed from one saved input. In long chains, or with several micro-batches in flight, the result is only close to
// the best.
class ChainSolver {
 public:
  // Copies the chain. `most_bytes` is the largest budget that best() will be called with.
  ChainSolver(const Chain& chain, int64_t most_bytes, int32_t resolution = 500);
  ~ChainSolver();
  ChainSolver(ChainSolver&&) noexcept;

  // Returns the fastest choices whose peak is at most budget_bytes, or nothing if no choices fit. `price` multiplies
  // the units' copy_seconds; without a price no unit is offloaded. The caller sets when copies begin and end
  // (UnitOffload).
  std::optional<UnitChoices> best(int64_t budget_bytes, std::optional<double> price = {});

 private:
  class Tables;
  std::unique_ptr<Tables> tables_;
};

}  // namespace gptrain::schedule
