// The interface of optimizers. An optimizer declares the columns of its state and updates the weights unit by unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "model/record.h"
#include "ops/backend.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"
#include "parallel/state_columns.h"

namespace gptrain::inline optim {

// Objects that an update reads and writes, all borrowed.
struct UpdateContext {
  const ParameterStore& parameters;
  StepState* state;  // device memory
  Backend& backend;
  RankGroups& groups;
  Workspace& workspace;
};

// Updates this rank's weights and state columns. Columns are zero before the first update. If StepState::skip is set,
// no op of an update writes anything.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Computes the sums over whole tensors that the updates need. RETURNS this rank's part in f64, which the caller then
  // adds up over the world, or a matrix that is not given. REQUIRES: called by all ranks once a step, before its
  // updates and after PrepareUpdate.
  virtual Matrix measure() { return {}; }
  // Updates this rank's part of the unit (ParameterStore::update_range). Gradients are multiplied by
  // StepState::gradient_scale, which clips them and divides out the loss scale. REQUIRES: the unit's gradients are
  // summed over all ranks.
  virtual void update(int64_t unit) = 0;
};

// Description of an optimizer: a row of the table in types.cpp.
struct OptimizerType {
  OptimizerKind kind;
  StateColumns columns;  // without the column of the weights' average
  // RETURNS the bytes of device memory for tables of segments, beside the columns.
  int64_t (*table_bytes)(const ParameterStore& parameters);
  // RETURNS the optimizer. `tables` is device memory of table_bytes, owned by the caller. `seed`: of stochastic
  // rounding.
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                     std::byte* tables);
};

}  // namespace gptrain::optim
