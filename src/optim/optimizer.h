// What updates the weights: an optimizer declares the columns of its state and updates unit by unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "ops/backend.h"
#include "parallel/parameters.h"
#include "parallel/state_columns.h"

namespace gptrain {

// What the end of a step works on. Everything is borrowed.
struct UpdateContext {
  const ModelSpec& spec;
  const std::vector<TensorShard>& shards;
  const ParameterStore& parameters;
  StepState* state;  // device memory
  Backend& backend;
};

// Its columns are zero before the first update. No op of an update writes anything when the step's state says skip.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // What this rank updates of one unit (ParameterStore::update_range), by the unit's summed gradients, which
  // StepState::gradient_scale clips and unscales.
  virtual void update(int64_t unit) = 0;
};

// A kind of optimizer: a row of the table in optimizer.cpp.
struct OptimizerType {
  OptimizerKind kind;
  StateColumns (*columns)(const OptimizerConfig& config);
  // Device memory beside the columns, as of segment tables.
  int64_t (*table_bytes)(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                         const ParameterStore& parameters);
  // `tables`: table_bytes of device memory. `seed`: of stochastic rounding.
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                     std::byte* tables);
};

const OptimizerType& optimizer_type(OptimizerKind kind);

}  // namespace gptrain
