// Parts of a rank's training step: its arenas, the model, the executors and the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/enum_array.h"
#include "model/model.h"
#include "model/record.h"
#include "model/step_statistics.h"
#include "ops/backend.h"
#include "ops/side_queue.h"
#include "ops/step_state.h"
#include "optim/amax_history.h"
#include "optim/optimizer.h"
#include "optim/qk_clip.h"
#include "optim/router_balance.h"
#include "optim/step_agreement.h"
#include "parallel/accumulated_gradients.h"
#include "parallel/away_gradients.h"
#include "parallel/away_state.h"
#include "parallel/compressed_reducer.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "parallel/island_average.h"
#include "parallel/memory.h"
#include "parallel/micro_batch_uploads.h"
#include "parallel/offload_lanes.h"
#include "parallel/parameters.h"
#include "parallel/update_lane.h"
#include "parallel/weight_reads.h"
#include "step/state_snapshot.h"
#include "step/step_design.h"
#include "step/step_readback.h"
#include "step/update_device.h"

namespace gptrain::inline step {

// Parts of a TrainingStep, made once in this order. The comment of a class of them says how it is used.
struct StepParts {
  // Takes the design's arenas. Arguments: see TrainingStep.
  StepParts(std::shared_ptr<const StepDesign> of, Backend& ops, RankGroups& rank_groups, const UpdateDevice& updates);
  // Waits until no other rank reads this rank's memory.
  ~StepParts();
  StepParts(const StepParts&) = delete;
  StepParts& operator=(const StepParts&) = delete;

  // Waits for updates that run beside the ops, and for gathers.
  void wait_all() const;
  // Return the arena of a class in its usual place, and in the place of updates.
  const DeviceMemory& memory_of(MemoryClass c) const;
  const DeviceMemory& memory_of_updates(MemoryClass c) const;
  std::byte* arena(MemoryClass c) const { return memory_of(c).data(); }
  // Makes the device's weights of a unit from the masters on the host. REQUIRES: `copies` is not null; no update runs.
  void return_weights(int64_t unit);
  // Whether a value of ParameterStore::state is in the memory of updates beside a GPU.
  bool is_on_host(const void* value) const;
  std::byte* updated_weights() const;
  // See TrainingStep.
  float* residuals_at(int64_t buffer) const;
  // Returns the bytes of both memories of errors.
  int64_t residual_bytes() const;
  // See TrainingStep::use_program.
  void use(size_t number);
  MemoryPlan taken() const;

  const std::shared_ptr<const StepDesign> design;
  const bool beside_gpu;  // updates_beside_gpu
  Backend& backend;
  Backend& update_backend;
  RankGroups& groups;
  const std::unique_ptr<SideQueue> copy_queue;  // null: the backend's memory is the host's
  StepReadback readback;
  std::unique_ptr<MicroBatchUploads> uploads;  // null in the same case
  std::optional<OffloadLanes> offloads;        // empty if nothing is offloaded
  std::optional<StateSnapshot> snapshot;       // empty until take_snapshot_memory
  using OfClasses =
      EnumArray<MemoryClass, std::unique_ptr<DeviceMemory>, num_memory_classes>;  // null where none is planned
  EnumArray<MemoryPlace, OfClasses, num_memory_places> arenas;
  Workspace workspace;
  StepState* state = nullptr;  // in device memory
  StepState host_state;
  std::unique_ptr<ParameterStore> parameters;
  std::unique_ptr<ParameterStore> staged_parameters;  // as updates see them beside a GPU; null otherwise
  // Null if all state is at home. Access from the rank's thread comes first, as it waits for the lane.
  std::unique_ptr<UpdateCopies> copies;  // null unless updates run beside a GPU; null in a plan
  std::unique_ptr<UpdateLane> lane;
  std::unique_ptr<AwayState> away;
  std::unique_ptr<WeightReads> weight_reads;      // null unless weights are away
  std::unique_ptr<AwayGradients> away_gradients;  // null unless gradients are away
  UnitTickets gathers;
  std::unique_ptr<Model> model, evaluation_model;
  StepStatistics statistics;
  const std::vector<std::byte> initial_statistics;
  std::unique_ptr<QkClip> qk_clip;                // null with optimizer.qk_clip = 0
  std::unique_ptr<AmaxHistory> amax_history;      // null without precision.amax_history
  std::unique_ptr<RouterBalance> router_balance;  // null unless routers have vectors that follow the loads
  std::unique_ptr<StepAgreement> agreement;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<AccumulatedGradients> accumulated;  // null with precision.gradients = fp32
  std::unique_ptr<StepUpdate> update;                 // agreement and optimizer
  std::unique_ptr<GradientCompression> compression;   // null if gradients are summed as they are
  std::unique_ptr<IslandAverage> islands;             // null without parallel.local_steps
  WeightAverage* average = nullptr;                   // null unless ranks or islands train alone in some steps
  bool anchors_are_old = false;                       // steps since the last averaging summed over all islands
  std::vector<std::unique_ptr<Executor>> executors;   // by StepDesign::programs
  std::unique_ptr<Executor> evaluation_executor;
  size_t program;
  ExpertOverflow overflow;  // filled in by both models

 private:
  OfClasses& arenas_on(MemoryPlace place) { return arenas[place]; }
  void allocate(const UpdateDevice& updates);
  void allocate_for_updates(MemoryPlace place, const UpdateDevice& updates);
  void make_parameters();
  void make_update_lane(const UpdateDevice& updates);
  void lend_memory(WorkingFiles& files) const;
  void make_compression();
  // Makes the agreement at a step's end and the optimizer.
  void make_update();
  void make_executors();
  ArenaStarts arena_starts() const;
};

}  // namespace gptrain::step
