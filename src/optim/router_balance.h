// Vectors of routers that follow the experts' loads: biases that balance the choice, and loads for the balance loss of
// the next step (ops/experts.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/experts.h"
#include "optim/optimizer.h"

namespace gptrain::inline optim {

// Changes the routers' vectors at a step's end by the loads of the step on all ranks (routing_statistic). Optimizers
// leave them as they are, since their gradient and moments are 0 and they have no weight decay.
class RouterBalance {
 public:
  // Uploads its segments to `tables`, device memory of table_bytes. `routed`: the statistic, [1, n] f64 in device
  // memory. Borrows the context's references.
  RouterBalance(const UpdateContext& context, double rate, const Matrix& routed, std::byte* tables);

  // Returns the bytes of `tables`: a segment for each part of a vector on this rank.
  static int64_t table_bytes(const ParameterStore& parameters);

  // Changes this rank's part of the unit's vectors (StepUpdate calls it after Optimizer::update). REQUIRES: the ranks
  // have agreed on the statistic.
  void update(int64_t unit) const;

 private:
  UpdateContext context_;
  double rate_;
  Matrix routed_;
  const BalanceSegment* segments_;      // device memory, unit after unit
  std::vector<int64_t> first_segment_;  // by unit, then the end
};

}  // namespace gptrain::optim
