// Everything one rank needs to run training steps: the model's units, the schedule, the arenas, the executor and the
// optimizer, on a given backend. On the `plan` backend the very same object is the dry run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "model/units.h"
#include "ops/backend.h"
#include "ops/plan/plan_backend.h"
#include "optim/adamw.h"
#include "parallel/executor.h"
#include "parallel/memory.h"

namespace gptrain {

// What one step takes, found by running it on the `plan` backend.
struct StepPlan {
  MemoryPlan memory;
  int64_t frame_bytes = 0;    // high-water mark of tensors inside actions
  int64_t scratch_bytes = 0;  // the most any op asks for; workspace = scratch + frames
  OpTable ops{};              // of the whole step
  ModelSpec spec;

  OpTotals total() const;
};

// Micro-batches that are read ahead on the host, and the memory they take there.
constexpr int prefetch_depth = 4;
int64_t prefetch_ring_bytes(const RunConfig& config);
// One ring for training, and one for validation where the config has some.
int64_t all_rings_bytes(const RunConfig& config);

struct StepResult {
  double loss = 0;       // mean cross-entropy of the counted tokens, nats
  double grad_norm = 0;  // before clipping
  bool skipped = false;  // the loss or the norm was not finite; nothing was updated
  int64_t updates = 0;   // steps of the run that were not skipped
};

class TrainingStep {
 public:
  // Takes the arenas that `plan` names from `backend`, which it borrows. Weights and moments are undefined until
  // initialize or the caller's writes to state_tensors (followed by weights_changed).
  TrainingStep(const RunConfig& config, const StepPlan& plan, Backend& backend);
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  const ModelSpec& spec() const { return spec_; }
  // Bytes that the arenas really took, the host's ring of micro-batches included.
  MemoryPlan taken() const;
  int64_t counted_tokens() const { return counted_tokens_; }  // of a step

  // Initial weights, zero moments, no updates done. `progress(elements)`, if given, hears of the elements drawn so far.
  void initialize(const std::function<void(int64_t)>& progress = {});
  // Call after the master weights were written from outside: makes the compute weights from them.
  void weights_changed();
  void set_updates(int64_t updates);  // continues a run: bias corrections follow

  StepResult run(double learning_rate, MicroBatchSource& source, ActionObserver* observer = nullptr);
  // Sum of the cross-entropy over `micro_batches` micro-batches, without dropout. Weights do not change.
  double evaluate(int64_t micro_batches, MicroBatchSource& source);

  // One rank's part of a tensor's training state: `count` true elements of each, in device memory.
  struct StateTensor {
    int64_t tensor;  // index in spec().tensors
    float* weight;   // master
    float* exp_avg;
    float* exp_avg_sq;
    float* gradient;  // of the last step, before clipping
    int64_t count;
  };
  std::vector<StateTensor> state_tensors() const;

  Workspace& workspace() { return workspace_; }

 private:
  std::byte* arena(MemoryClass c) const { return arenas_[static_cast<size_t>(c)]->data(); }
  std::byte* master() const;
  ArenaMemory arena_memory() const;

  RunConfig config_;
  Backend& backend_;
  ModelSpec spec_;
  ParameterLayout layout_;
  Schedule schedule_, evaluation_;
  std::array<std::unique_ptr<DeviceMemory>, num_memory_classes> arenas_;
  int64_t counted_tokens_;
  Workspace workspace_;
  StepState* state_;  // device
  StepState host_state_;
  std::unique_ptr<Communicator> data_group_;
  std::unique_ptr<Units> units_, evaluation_units_;
  std::unique_ptr<AdamWRule> update_;
  std::unique_ptr<Executor> executor_, evaluation_executor_;
};

// Runs one step of `config` on the `plan` backend for `target`.
StepPlan plan_step(const RunConfig& config, const Target& target);

// Which units (embedding, blocks, head) the config recomputes.
std::vector<bool> recomputed_units(const RunConfig& config);

}  // namespace gptrain
