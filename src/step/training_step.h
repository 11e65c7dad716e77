// Runs the training steps of a design on one rank: owns the arenas, the model, the executors and the optimizer. On the
// `plan` backend the same class is the dry run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "config/run_config.h"
#include "ops/backend.h"
#include "optim/optimizer.h"
#include "optim/step_agreement.h"
#include "parallel/away_gradients.h"
#include "parallel/away_state.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "parallel/update_lane.h"
#include "parallel/weight_reads.h"
#include "step/state_snapshot.h"
#include "step/step_design.h"
#include "step/step_readback.h"

namespace gptrain::inline step {

struct StepResult {
  double loss = 0;              // mean cross-entropy of the counted tokens, nats
  double grad_norm = 0;         // before clipping
  bool skipped = false;         // the loss or the norm was not finite; nothing was updated
  bool stop = false;            // some rank wants to stop
  bool is_void = false;         // some rank could not read its data; nothing was updated
  int64_t updates = 0;          // steps of the run that were not skipped
  double largest_score = 0;     // largest attention score, with optimizer.qk_clip
  int64_t clipped_heads = 0;    // heads whose weights QK-clip scaled
  double loss_scale = 1;        // scale of the step's gradients; always 1 except in fp16
  int64_t counted_targets = 0;  // in the global batch
  std::vector<double> sums;     // sums of the step's statistics (StatisticsLayout::part_of)
  double seconds = 0;           // since the step began, or since the step before ended if that was later

  // Returns true if gradients overflowed and the loss scale was halved, an ordinary event in fp16. Returns false if the
  // scale was at its minimum already.
  bool lowered_loss_scale() const { return skipped && loss_scale > static_cast<double>(least_loss_scale); }
};

// Backend and memory of updates that do not run where the ops do.
struct UpdateDevice {
  // Runs them with StepChoices::updates_on_host, or with state that is away; null: the ops' own.
  Backend* backend = nullptr;
  WorkingFiles* files = nullptr;  // memory of StepChoices::optimizer_state on disk; a plan has none
};

// All functions that do not just return a value are collective unless their comment says otherwise: all ranks of the
// world call them in the same order. One thread calls them, the thread of the backend.
class TrainingStep {
 public:
  // Takes the design's arenas from `backend`. Borrows the backend, the groups and the members of
  // `updates`. REQUIRES: the
  // design is for the rank of the groups. Weights and state are undefined until `initialize`, or until the caller has
  // written `state()` and called weights_changed.
  TrainingStep(std::shared_ptr<const StepDesign> design, Backend& backend, RankGroups& groups,
               const UpdateDevice& updates = {});
  // Waits until no other rank reads this rank's memory.
  ~TrainingStep();
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  const StepDesign& design() const { return *design_; }
  const ModelSpec& spec() const { return design_->spec; }
  Backend& backend() const { return backend_; }
  const RankGroups& groups() const { return groups_; }
  // Returns the bytes that the arenas really took, and memory_outside. Not collective.
  MemoryPlan taken() const;

  // Times the library algorithms of every matrix product of a step and an evaluation, and selects the fastest. No
  // effect if the backend offers no choice. Overwrites the arenas. REQUIRES: called first.
  void choose_algorithms();
  // Sets initial weights, zero optimizer state and 0 updates. Calls `progress`, if given, with the number of elements
  // drawn so far.
  void initialize(const std::function<void(int64_t)>& progress = {});
  // Zeroes weights, optimizer state and errors of compressed gradients, padding included. Call before loading a
  // checkpoint. Waits for gathers.
  void clear_state();
  // Makes the compute weights from the weights in `state()`. Call after writing these.
  void weights_changed();
  // Sets the number of updates done, to continue a run.
  void set_updates(int64_t updates);
  // Returns the number of updates by steps that have ended.
  int64_t updates() const { return host_state_.updates; }
  void set_loss_scale(const LossScale& scale);
  // Returns the loss scale of the next step; none except in fp16.
  std::optional<LossScale> loss_scale() const {
    return design_->config.precision.scales_loss() ? std::optional(host_state_.loss_scale) : std::nullopt;
  }

  // Selects one of StepDesign::programs for the steps that begin from now on; the last one until then. Not collective.
  void use_program(size_t number) { program_ = number; }
  // Begins a step; on a device it only queues the step. `source` provides this rank's micro-batches and must live until
  // all steps that have begun have ended. `observer`: called before and after each action; may be null. `stop_wanted`:
  // called late in the step, and until the next step begins; StepResult::stop is true on every rank if it returned true
  // on any. Once true, it must stay true. `counted_targets`: number of targets in the global batch that the loss is the
  // mean over, above 0; none: all.
  void begin(double learning_rate, MicroBatchSource& source, ActionObserver* observer = nullptr,
             const std::function<bool()>& stop_wanted = {}, std::optional<int64_t> counted_targets = {});
  // Waits for the oldest step that has begun and not ended, and returns its result.
  StepResult end();
  // Returns the number of steps that have begun and not ended. All functions that use the device, except begin and end,
  // REQUIRE it to be 0.
  int64_t begun() const { return readback_.ahead(); }
  // Returns the largest value of begun() with which `begin` may be called. 0 on the CPU, where a step is over when
  // `begin` returns. With 1, a device has work while the host reads a result and begins the next step.
  int64_t most_ahead() const { return copy_queue_ != nullptr ? StepReadback::most_ahead - 1 : 0; }
  // Begins and ends one step.
  StepResult run(double learning_rate, MicroBatchSource& source, ActionObserver* observer = nullptr,
                 const std::function<bool()>& stop_wanted = {}, std::optional<int64_t> counted_targets = {});
  // Returns true if any rank wants to stop.
  bool agree_to_stop(bool wanted) { return agreement_->agree_to_stop(wanted); }
  // Returns the sum of the cross-entropy over `micro_batches` micro-batches of every data rank, in nats, without
  // dropout.
  double evaluate(int64_t micro_batches, MicroBatchSource& source);

  // Returns this rank's training state, in device memory (see ParameterStore::state). Waits for gathers. Not
  // collective.
  std::vector<StateSlice> state(bool written_only = false) const;
  // Returns the access to values of `state()` that are away; null: there are none.
  AwayState* away() const { return away_.get(); }
  // Copy values of `state()`, bytes of one unit.
  void read_state(void* to, const void* from, int64_t bytes) const;
  void write_state(void* to, const void* from, int64_t bytes) const;
  // Returns the pieces of this rank's errors of compressed gradients, and factors. Not collective.
  std::vector<StateSlice> residuals() const;
  // Returns the part of residuals() that this rank writes to a checkpoint: factors only on the first data rank.
  std::vector<StateSlice> written_residuals() const;
  // Returns the part of state() and residuals() that this rank writes to a checkpoint. Waits for gathers. Not
  // collective.
  std::vector<StateSlice> written_state() const;
  // Returns the memory of the errors of the steps so far (0), or that of a step's own errors (1), which is free between
  // steps; null if none are kept.
  float* residuals_at(int64_t buffer) const;
  const ParameterStore& parameters() const { return *parameters_; }
  // Takes the memory of copy_state. Not collective. THROWS Error(device).
  void take_snapshot_memory();
  // Copies the part of the state that this rank writes to a checkpoint, written_state(): see StateSnapshot::copy. Not
  // collective. REQUIRES: take_snapshot_memory was called.
  std::vector<StateSlice> copy_state();
  // Returns the CRC-32C of the weights of which the ranks of a group have replicas. 0 with ZeRO 3, where no two ranks
  // hold the same weights. Not collective.
  uint32_t weights_checksum(ReplicaGroup replicas) const;
  // Returns the overflow of experts that has made a step or an evaluation void; the same on the ranks that share them.
  const ExpertOverflow& expert_overflow() const { return overflow_; }
  // Returns the CRC-32C of the norms' weights, which is the same on all tensor ranks. 0 with ZeRO 3. Not collective.
  uint32_t norms_checksum() const;

  Workspace& workspace() { return workspace_; }
  // Returns the statistics that the ops of a step collect.
  const StepStatistics& statistics() const { return statistics_; }
  // Takes host memory for micro-batches, from which uploads are fast. Not collective.
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes);

 private:
  using OfClasses = std::array<std::unique_ptr<DeviceMemory>, num_memory_classes>;  // null where none is planned
  OfClasses& arenas_on(MemoryPlace place) { return arenas_[static_cast<size_t>(place)]; }
  // Takes all arenas.
  void allocate();
  void make_update_lane(WorkingFiles* files);
  // Waits for updates that run beside the ops, and for gathers.
  void wait_all() const;
  // Return the arena of a class in its usual place, and in the place of updates.
  const DeviceMemory& memory_of(MemoryClass c) const;
  const DeviceMemory& memory_of_updates(MemoryClass c) const;
  std::byte* arena(MemoryClass c) const { return memory_of(c).data(); }
  ArenaStarts arena_starts() const;
  void initialize_weights(const StateSlice& piece);

  const std::shared_ptr<const StepDesign> design_;
  Backend& backend_;
  Backend& update_backend_;
  RankGroups& groups_;
  const std::unique_ptr<SideQueue> copy_queue_;  // null: the backend's memory is the host's
  StepReadback readback_;
  std::unique_ptr<MicroBatchUploads> uploads_;  // null in the same case
  std::optional<OffloadLanes> offloads_;        // empty if nothing is offloaded
  std::optional<StateSnapshot> snapshot_;       // empty until take_snapshot_memory
  std::array<OfClasses, num_memory_places> arenas_;
  Workspace workspace_;
  StepState* state_;  // in device memory
  StepState host_state_;
  std::unique_ptr<ParameterStore> parameters_;
  // Null if all state is at home. Access from the rank's thread comes first, as it waits for the lane.
  std::unique_ptr<UpdateLane> lane_;
  std::unique_ptr<AwayState> away_;
  std::unique_ptr<WeightReads> weight_reads_;      // null unless weights are away
  std::unique_ptr<AwayGradients> away_gradients_;  // null unless gradients are away
  UnitTickets gathers_;
  std::unique_ptr<Model> model_, evaluation_model_;
  StepStatistics statistics_;
  const std::vector<std::byte> initial_statistics_;
  std::unique_ptr<QkClip> qk_clip_;  // null with optimizer.qk_clip = 0
  std::unique_ptr<StepAgreement> agreement_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<AccumulatedGradients> accumulated_;  // null with precision.gradients = fp32
  std::unique_ptr<StepUpdate> update_;                 // agreement_ and optimizer_
  std::unique_ptr<GradientCompression> compression_;   // null if gradients are summed as they are
  std::vector<std::unique_ptr<Executor>> executors_;   // by StepDesign::programs
  std::unique_ptr<Executor> evaluation_executor_;
  size_t program_;
  ExpertOverflow overflow_;  // filled in by both models
};

}  // namespace gptrain::step
