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

namespace gptrain {

// What an update reads and writes. All of it is borrowed.
struct UpdateContext {
  const ParameterStore& parameters;
  StepState* state;  // device memory
  Backend& backend;
  RankGroups& groups;
  Workspace& workspace;
};

// The columns are zero before the first update. When the step's state says that the step is skipped, no op of an update
// writes anything.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Called once before the updates of a step, when its state is decided, by all ranks: what the updates need of whole
  // tensors. Returns sums of what this rank holds, f64, which the caller adds up over the world, or nothing.
  virtual Matrix measure() { return {}; }
  // Updates this rank's part of the unit (ParameterStore::update_range). The unit's gradients are summed over all
  // ranks; the update multiplies them by StepState::gradient_scale, which clips them and takes the loss scale out.
  virtual void update(int64_t unit) = 0;
};

// A kind of optimizer: a row of the table in types.cpp.
struct OptimizerType {
  OptimizerKind kind;
  StateColumns columns;  // without that of the weights' average
  // Bytes of device memory that the optimizer takes beside its columns, for tables of segments.
  int64_t (*table_bytes)(const ParameterStore& parameters);
  // `tables` is device memory of table_bytes. `seed` is that of stochastic rounding.
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                     std::byte* tables);
};

}  // namespace gptrain
