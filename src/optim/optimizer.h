// The interface of optimizers. An optimizer declares the columns of its state and updates the weights unit by unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "model/record.h"
#include "ops/backend.h"
#include "parallel/away_state.h"
#include "parallel/compressed_reducer.h"
#include "parallel/groups.h"
#include "parallel/island_average.h"
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
  AwayState* away = nullptr;                         // null: all state is at home
  const GradientCompression* compression = nullptr;  // null if gradients are summed as they are
  std::byte* exchange = nullptr;                     // device memory of exchange_bytes (types.h); null if that is 0
  bool on_host_of_gpu = false;                       // `backend` is the CPU beside the GPU of the ops
};

// How the ranks have summed the gradients that an update reads.
enum class SumsOfStep : uint8_t {
  plain,       // in f32 or bf16
  compressed,  // in messages
  none,        // each rank has its own, but for units without coded elements
};

// Updates this rank's weights and state columns. Columns are zero before the first update. If StepState::skip is set,
// no op of an update writes anything.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Computes values that need whole tensors: sums over a tensor's elements, or an update from a whole matrix (Muon).
  // RETURNS this rank's part of the sums in f64, in device memory, which the caller then adds up over the world in
  // place; a matrix that is not given if there are none. REQUIRES: called by all ranks once a step, after the op
  // PrepareUpdate and before the step's updates. May be collective over the stage's ranks. Reads state that is on
  // disk itself.
  virtual Matrix measure() { return {}; }
  // Tells how the next steps sum gradients, and the messages of compressed sums, which it borrows.
  virtual void expect_sums(SumsOfStep /*sums*/, const GradientMessages& /*messages*/) {}
  // RETURNS the exchange that makes weights the same after steps without sums; null: there are no such steps.
  virtual WeightAverage* average() { return nullptr; }
  // Updates this rank's part of the unit (ParameterStore::update_range). Gradients are multiplied by
  // StepState::gradient_scale, which clips them and divides out the loss scale. REQUIRES: the unit's gradients are
  // summed over all ranks; measure() was called in this step, and its sums were added up. Not collective: units may be
  // updated in any order, each once a step.
  virtual void update(int64_t unit) = 0;
};

// Description of an optimizer: a row of the table in types.cpp.
struct OptimizerType {
  OptimizerKind kind;
  StateColumns columns;  // without the column of the weights' average
  // RETURNS the bytes of device memory that the optimizer needs beside the columns: tables of segments and sums.
  int64_t (*table_bytes)(const ParameterStore& parameters);
  // RETURNS the optimizer, which keeps the context's references. `tables` is device memory of table_bytes, owned by the
  // caller and written here. `seed`: key of stochastic rounding's random numbers.
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                     std::byte* tables);
};

}  // namespace gptrain::optim
