// The design of a rank's step, made once: the only input of the dry run, training, evaluation and generation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "data/prefetcher.h"
#include "model/micro_batch.h"
#include "model/model.h"
#include "model/statistics.h"
#include "ops/target.h"
#include "parallel/gradient_messages.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "parallel/parameters.h"
#include "parallel/program.h"
#include "schedule/step_choices.h"
#include "step/step_programs.h"

namespace gptrain::inline step {

// The memory of a rank's step. The size of the workspace is known once the step has run on the `plan` backend.
struct StepMemory {
  MemoryPlan arenas;  // all memory of the step, `outside` included
  // The part that TrainingStep's constructor does not take: memory_outside, snapshot, samples, state on disk.
  MemoryPlan outside;
  int64_t frame_bytes = 0;           // high-water mark of tensors inside actions
  int64_t scratch_bytes = 0;         // largest scratch of an op; workspace = scratch + frames + scratch of updates
  int64_t update_scratch_bytes = 0;  // largest scratch of an op of updates that run beside the others
};

// Byte offsets of tables in the arena `state`, which begins with the StepState.
struct StateTables {
  int64_t agreement = 0;
  int64_t optimizer = 0;
  int64_t accumulated_gradients = 0;
  int64_t qk_clip = 0;
  int64_t router_balance = 0;
  int64_t amax_history = 0;
  int64_t statistics = 0;
  int64_t update_state = 0;  // StepState of updates that run beside the ops
};

struct StepDesign {
  RunConfig config;
  TensorRank tensor;
  ContextRank context;
  Stages stages;
  bool sequence = false;                  // sequence parallelism
  std::shared_ptr<const ModelSpec> spec;  // shared with other designs, as are the shards
  std::shared_ptr<const std::vector<TensorShard>> shards;
  Sharding sharding;
  ParameterLayout layout;
  GradientMessages messages;  // messages of compressed gradients; none if gradients are summed as they are
  StateColumns columns;       // the optimizer's state; empty for inference
  StepShape training_shape, evaluation_shape;
  // By unit: the first unit of equal design, whose training actions run the same ops.
  std::vector<int32_t> first_equal_unit;
  StepChoices choices;
  std::shared_ptr<const Program> training;  // one step, after the warm-up if there is one
  std::vector<StepProgram> programs;        // programs of all training steps, by first_step; the last one is `training`
  std::shared_ptr<const Program> evaluation;  // one micro-batch, in the same arenas
  StepMemory memory;
  StateTables tables;
  StatisticsLayout statistics;
  // Returns the index in `programs` of the step that comes after `steps` steps of the run.
  size_t program_after(int64_t steps) const {
    return gptrain::program_after(config, config.run.steps, programs, steps);
  }
  // Whether the weights are the same on all ranks after `step` steps of the run, so that they can be saved.
  bool are_equal_after(int64_t step) const { return config.has_equal_weights_after(step, config.run.steps); }
  // Whether the errors of compressed gradients are dropped after `steps` steps: later ones are of another quantity.
  bool forgets_errors_after(int64_t steps) const {
    return config.optimizer.type == OptimizerKind::zero_one_adam && steps == config.optimizer.freeze_step;
  }
  // Whether the rank keeps the errors of compressed gradients.
  bool keeps_residuals() const { return config.compression().error && messages.num_residuals > 0; }
  int64_t snapshot_bytes = 0;  // memory of TrainingStep::take_snapshot_memory; 0: there is none
  int64_t cloned_bytes = 0;    // part of the working files that a checkpoint clones; 0: it copies all state
  ExpertRank experts;          // the rank among those that share experts
};

// Makes the design for the rank of `groups`. `choices`: the choices for the rank's stage. `like`: the training program
// of another rank of this stage, or null; the design shares it if this rank's program would be equal.
// THROWS Error(usage) if gradients that are away cannot be combined with the pipeline schedule.
StepDesign design_step(const RunConfig& config, const Target& target, const RankGroups& groups, StepChoices choices,
                       const std::shared_ptr<const Program>& like = nullptr);

std::vector<Statistic> step_statistics(const StepConfig& config);
// Gives the design these statistics in place of its own, and the memory for them.
void declare_statistics(StepDesign& design, std::vector<Statistic> statistics);

// Sets the traits of `unit` that follow from its choice: recomputation and offload.
void set_recomputed(UnitTraits& traits, int32_t unit, const UnitChoice& choice);

// Makes the design of a forward pass over one sequence of `length` tokens, with weights in f32 and without data
// parallelism. The program is the design's `evaluation` and ends before the logits. There is no memory for training.
StepDesign design_inference(const RunConfig& config, const Target& target, const RankGroups& groups, int64_t length);

// Makes the model of a design on a backend. Borrows the design, the backend, the groups and `overflow`, which may be
// null in a plan.
std::unique_ptr<Model> make_model(const StepDesign& design, const StepShape& shape, Backend& backend,
                                  RankGroups& groups, ExpertOverflow* overflow = nullptr);

// Returns the shape of the micro-batches of a rank with that number on the context axis.
MicroBatchShape micro_batch_shape(const StepConfig& config, int64_t context_rank = 0);

// Returns the size of a ring in which a device's last micro-batches stay valid: two steps', at most most_retained.
PrefetchRing prefetch_ring(const StepConfig& config, const Target& target);
int64_t prefetch_ring_bytes(const StepConfig& config, const Target& target);
// Returns the bytes of the ring for training, and of the one for validation if the config has validation data.
int64_t all_rings_bytes(const StepConfig& config, const Target& target);

// Returns the target of updates whose state is away: the host, with the threads that the config gives them.
Target update_target(const MemoryConfig& memory, const Target& target);

// Returns the place at which host memory is counted: `device` if the device's memory is the host's.
MemoryPlace host_place(const Target& target);
// Returns the place of all that only updates use.
MemoryPlace place_of_updates(const StepChoices& choices, const Target& target);
// Whether updates run on the host of a GPU, with gradients and weights that are copied (StagedUnits).
bool updates_beside_gpu(const StepChoices& choices, const Target& target);
MemoryPlace arena_place(MemoryClass memory_class, const Target& target);

// Returns the memory that belongs to others than the step: the rings of micro-batches (to their readers), and the
// memory of exchanges between ranks (to the groups).
MemoryPlan memory_outside(const StepConfig& config, const Target& target, const ExchangeBytes& exchanged);

// Returns the bytes in which uploaded micro-batches arrive on a device with its own memory; 0 if it has none.
int64_t landing_bytes(const StepConfig& config, const Target& target);

}  // namespace gptrain::step
