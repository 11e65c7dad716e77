// Everything that decides what a rank's step does and where, made once, before any memory is taken: the only input of
// the dry run, training, evaluation and generation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "data/prefetcher.h"
#include "model/model.h"
#include "ops/target.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "parallel/parameters.h"
#include "parallel/program.h"
#include "schedule/step_choices.h"

namespace gptrain {

// The memory of a rank's step. The workspace is known when the step has run on the `plan` backend.
struct StepMemory {
  MemoryPlan arenas;
  MemoryPlan outside;         // of `arenas`, what is not taken with them: see memory_outside; the snapshot, and samples
  int64_t frame_bytes = 0;    // high-water mark of tensors inside actions
  int64_t scratch_bytes = 0;  // the most any op asks for; workspace = scratch + frames
};

// Offsets of tables in the arena `state`, in bytes; it begins with the StepState.
struct StateTables {
  int64_t agreement = 0;
  int64_t optimizer = 0;
  int64_t kept_gradients = 0;
};

struct StepDesign {
  RunConfig config;
  TensorPlace tensor;
  Stages stages;
  bool sequence = false;  // sequence parallelism
  ModelSpec spec;
  std::vector<TensorShard> shards;
  Sharding sharding;
  ParameterLayout layout;
  StateColumns columns;  // of the optimizer; empty for inference
  StepShape training_shape, evaluation_shape;
  // For each unit, the first unit whose design is equal in training. The actions of both run the same ops.
  std::vector<int32_t> first_alike;
  StepChoices choices;
  std::shared_ptr<const Program> training, evaluation;  // of one step, and of one micro-batch; they share the arenas
  StepMemory memory;
  StateTables tables;
  int64_t snapshot_bytes = 0;  // of the host's copy of the rank's state (TrainingStep::copy_state); 0: there is none
};

// The design for the rank of `groups`. `like` is the program of a rank of the same stage, or null. Where this rank's
// program would be equal, the design shares that one, and no second one is made. `choices`: those of the rank's stage.
StepDesign design_step(const RunConfig& config, const Target& target, const RankGroups& groups, StepChoices choices,
                       const std::shared_ptr<const Program>& like = nullptr);

void set_recomputed(UnitTraits& traits, int32_t unit, const UnitChoice& choice);

// The forward pass over one sequence of `length` tokens, on one rank with all weights in f32: the program is the
// design's `evaluation`, and ends before the logits. It has no memory for training.
StepDesign design_inference(const RunConfig& config, const Target& target, const RankGroups& groups, int64_t length);

// The model of a design on a backend. The groups outlive it.
std::unique_ptr<Model> make_model(const StepDesign& design, const StepShape& shape, Backend& backend,
                                  RankGroups& groups);

// Of a rank's micro-batches.
MicroBatchShape micro_batch_shape(const RunConfig& config);

// For a device whose memory is apart, those of two steps are kept, as many as the host may have queued.
PrefetchRing prefetch_ring(const RunConfig& config, const Target& target);
int64_t prefetch_ring_bytes(const RunConfig& config, const Target& target);
// One ring for training, and one for validation where the config has some.
int64_t all_rings_bytes(const RunConfig& config, const Target& target);

// Where the host's memory counts: beside a device whose memory is apart it is a place of its own; and where an arena lies.
MemoryPlace host_place(const Target& target);
MemoryPlace arena_place(MemoryClass memory_class, const Target& target);

// What a step does not take itself: the rings, which belong to whoever reads micro-batches, and what its groups exchange
// through.
MemoryPlan memory_outside(const RunConfig& config, const Target& target, const ExchangeBytes& exchanged);

// Where an uploaded micro-batch lands on a device whose memory is apart; 0 elsewhere.
int64_t landing_bytes(const RunConfig& config, const Target& target);

}  // namespace gptrain
