// Runs the training steps of a design on one rank: owns the arenas, the model, the executors and the optimizer. On the
// `plan` backend the same class is the dry run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/loss_scale.h"
#include "model/micro_batch_source.h"
#include "parallel/action_observer.h"
#include "step/step_design.h"
#include "step/update_device.h"

namespace gptrain::inline step {

struct StepParts;

struct StepResult {
  double loss = 0;              // mean cross-entropy of the counted tokens, nats
  double grad_norm = 0;         // before clipping
  bool skipped = false;         // the loss or the norm was not finite; nothing was updated
  bool stop = false;            // some rank wants to stop, or is_void
  bool is_void = false;         // a rank could not read its data, or expert_overflow(); nothing was updated
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

// All functions that do not just return a value are collective unless their comment says otherwise: all ranks of the
// world call them in the same order. One thread calls them, the thread of the backend.
class TrainingStep {
 public:
  // Takes the design's arenas from `backend`. Borrows the backend, the groups and the members of `updates`. REQUIRES:
  // the design is for the groups' rank. Weights and state are undefined until `initialize`, or until the caller has
  // written `state()` and called weights_changed. THROWS Error(machine) if memory is short.
  TrainingStep(std::shared_ptr<const StepDesign> design, Backend& backend, RankGroups& groups,
               const UpdateDevice& updates = {});
  // Waits until no other rank reads this rank's memory.
  ~TrainingStep();
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  const StepDesign& design() const { return *design_; }
  const ModelSpec& spec() const { return *design_->spec; }
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
  // Zeroes the errors of compressed gradients, and takes the present weights as those of the last average over ranks.
  // Call after a step with StepDesign::forgets_errors_after.
  void forget_errors();
  // Makes the compute weights from the weights in `state()`. Call after writing these.
  void weights_changed();
  // With delayed updates makes the next step compute with the weights of the last update, as a resumed run does; else
  // has no effect. Call before a save. Collective.
  void catch_up();
  // Sets the number of updates done, to continue a run.
  void set_updates(int64_t updates);
  // Returns the number of updates by steps that have ended.
  int64_t updates() const;
  // Continue with the amaxes of the last steps (AmaxHistory::get), or with none, and return them. Call set_amax_history
  // after set_updates. No effect, and empty, without precision.amax_history. THROWS Error(checkpoint) if they are those
  // of another model.
  void set_amax_history(const std::vector<float>& amaxes);
  std::vector<float> amax_history() const;
  void set_loss_scale(const LossScale& scale);
  // Returns the loss scale of the next step; none except in fp16.
  std::optional<LossScale> loss_scale() const;

  // Selects the program of the steps that begin from now on, by its index in StepDesign::programs. Without a call it is
  // the last one. Not collective.
  void use_program(size_t number);
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
  int64_t begun() const;
  // Returns the largest value of begun() with which `begin` may be called. 0 on the CPU, where a step is over when
  // `begin` returns. With 1, a device has work while the host reads a result and begins the next step.
  int64_t most_ahead() const;
  // Begins and ends one step.
  StepResult run(double learning_rate, MicroBatchSource& source, ActionObserver* observer = nullptr,
                 const std::function<bool()>& stop_wanted = {}, std::optional<int64_t> counted_targets = {});
  // Returns true if any rank wants to stop.
  bool agree_to_stop(bool wanted);
  // Returns the sum of the cross-entropy over `micro_batches` micro-batches of every data rank, in nats, without
  // dropout.
  double evaluate(int64_t micro_batches, MicroBatchSource& source);

  // Returns all training state that this rank updates, or with `written_only` the part that it writes to a checkpoint
  // (see ParameterStore::state). Waits for gathers. Not collective.
  std::vector<StateSlice> state(bool written_only = false) const;
  // Whether values of `state()` may be away: on disk, or on the host of a GPU. Their addresses lead to no memory: see
  // `fetched`.
  bool has_state_away() const;
  // Whether a value of `state()` is in memory of the host, though the ops run on a GPU. Not collective.
  bool is_on_host(const void* value) const;
  // Returns the address at which a value of `state()` can be read until the next call of a function of this object: its
  // own, or, for a value that is away, its place in memory, into which it is read first if it lies on disk.
  const std::byte* fetched(const void* value) const;
  // Copy values of `state()`, within one unit, to or from memory of the host. Not collective.
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
  const ParameterStore& parameters() const;
  // Takes the host memory of copy_state, and of reading the values of clone_state. Not collective. THROWS as the
  // constructor.
  void take_snapshot_memory();
  // Copies the part of the state that this rank writes to a checkpoint, written_state(): see StateSnapshot::copy.
  // Values on disk are not copied if StepDesign::cloned_bytes > 0. Not collective. REQUIRES: take_snapshot_memory was
  // called.
  std::vector<StateSlice> copy_state();
  // Clones the values on disk that copy_state does not copy, and returns a function that reads such a value by its
  // address: it calls `take` with the bytes, front to back in pieces, each valid until `take` returns. Empty if
  // copy_state copies all. The clone lasts as long as the function, at most as long as this object. Not collective.
  // THROWS as StoredFiles::clone; the function as StoredFiles::read. REQUIRES: take_snapshot_memory was called, and no
  // other clone exists.
  using Take = std::function<void(const std::byte*, int64_t)>;
  using ReadClone = std::function<void(const void* address, int64_t bytes, const Take& take)>;
  ReadClone clone_state();
  // Returns the CRC-32C of the weights of which the ranks of a group have replicas. 0 with ZeRO 3, where no two ranks
  // hold the same weights. Not collective.
  uint32_t weights_checksum(ReplicaGroup replicas) const;
  // Returns the overflow of experts that has made a step or an evaluation void; the same on the ranks that share them.
  const ExpertOverflow& expert_overflow() const;
  // Returns the CRC-32C of the norms' weights, which is the same on all tensor ranks. 0 with ZeRO 3. Not collective.
  uint32_t norms_checksum() const;

  Workspace& workspace();
  // Returns the statistics that the ops of a step collect.
  const StepStatistics& statistics() const;
  // Takes host memory for micro-batches, from which uploads are fast. Not collective. THROWS as the constructor.
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes);

 private:
  void initialize_weights(const StateSlice& piece);
  void begin_gathers();

  const std::shared_ptr<const StepDesign> design_;
  Backend& backend_;
  RankGroups& groups_;
  const std::unique_ptr<StepParts> parts_;
};

}  // namespace gptrain::step
