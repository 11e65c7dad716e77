// Everything one rank needs to run the training steps of a design: the arenas, the model, the executors and the
// optimizer, on a given backend. On the `plan` backend the very same object is the dry run.
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
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "train/state_snapshot.h"
#include "train/step_design.h"
#include "train/step_readback.h"

namespace gptrain {

struct StepResult {
  double loss = 0;        // mean cross-entropy of the counted tokens, nats
  double grad_norm = 0;   // before clipping
  bool skipped = false;   // the loss or the norm was not finite; nothing was updated
  bool stop = false;      // some rank wants to stop
  bool is_void = false;   // some rank could not read its data; nothing was updated
  int64_t updates = 0;    // steps of the run that were not skipped
  double loss_scale = 1;  // that the gradients were made with (not 1 only with fp16)
  int64_t counted_targets = 0;  // of the global batch
  // Since the step before was over, or, where that was before this one began, since then.
  double seconds = 0;

  // Gradients overflowed, and the loss scale, which is now halved, could still be: an ordinary part of training in
  // fp16.
  bool lowered_loss_scale() const { return skipped && loss_scale > static_cast<double>(least_loss_scale); }
};

// Everything here is the same on every rank but for `write`: the ranks of a world call the same functions in the same
// order.

class TrainingStep {
 public:
  // Takes the arenas that the design names from `backend`. Borrows the backend and the groups, whose place the design is
  // for. Weights and state are undefined until initialize or the caller's writes to `state` (followed by
  // weights_changed).
  TrainingStep(std::shared_ptr<const StepDesign> design, Backend& backend, RankGroups& groups);
  // Waits until the peers have what is being gathered from this rank's memory.
  ~TrainingStep();
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  const StepDesign& design() const { return *design_; }
  const ModelSpec& spec() const { return design_->spec; }
  Backend& backend() const { return backend_; }
  const RankGroups& groups() const { return groups_; }
  // Bytes that the arenas really took, the host's ring of micro-batches included.
  MemoryPlan taken() const;

  // Finds the algorithms of all products of a step and of an evaluation that the backend has a choice for, by timing
  // them on these arenas, which hold anything afterwards; nothing where it has none. Before anything else; collective as
  // a step is.
  void choose_algorithms();
  // Initial weights, zero optimizer state, no updates done. `progress(elements)`, if given, hears of the elements drawn so far.
  void initialize(const std::function<void(int64_t)>& progress = {});
  // Zero weights and optimizer state, padding too, which no tensor's values reach. Before they are written from outside.
  // Waits for what is still being gathered.
  void clear_state();
  // Call after the state's weights were written from outside: makes the compute weights from them, on all ranks.
  void weights_changed();
  void set_updates(int64_t updates);  // continues a run
  int64_t updates() const { return host_state_.updates; }  // of the steps that have ended
  void set_loss_scale(const LossScale& scale);
  // Of the next step; none but with fp16.
  std::optional<LossScale> loss_scale() const {
    return design_->config.precision.scales_loss() ? std::optional(host_state_.loss_scale) : std::nullopt;
  }

  // Begins a step. The source brings this rank's micro-batches. `stop_wanted` is asked late in the step, and is kept
  // until the next one; what any rank answers, all find in the result, and a rank that wants to stop goes on wanting
  // it. `counted_targets`: those of the global batch, above 0, which the loss is the mean over; none: all of them count.
  void begin(double learning_rate, MicroBatchSource& source, ActionObserver* observer = nullptr,
             const std::function<bool()>& stop_wanted = {}, std::optional<int64_t> counted_targets = {});
  // Waits for the oldest step that has begun and not ended. `source` is done with when all have.
  StepResult end();
  int64_t begun() const { return readback_.ahead(); }  // steps that have not ended
  // How many of them there may be when another one begins. 0 on the CPU, where a step is over when `begin` returns.
  // Where it is 1, the device has work while the host reads a result and begins the next step. Everything but begin and
  // end is to be called with none.
  int64_t most_ahead() const { return copies_ != nullptr ? StepReadback::most_ahead - 1 : 0; }
  // One whole step.
  StepResult run(double learning_rate, MicroBatchSource& source, ActionObserver* observer = nullptr,
                 const std::function<bool()>& stop_wanted = {}, std::optional<int64_t> counted_targets = {});
  // Whether any rank wants to stop. Collective over the world.
  bool agree_to_stop(bool wanted) { return agreement_->agree_to_stop(wanted); }
  // Sum of the cross-entropy over `micro_batches` micro-batches of every data rank, without dropout. Weights do not
  // change.
  double evaluate(int64_t micro_batches, MicroBatchSource& source);

  // This rank's training state, in device memory (see ParameterStore::state). Waits for what is still being gathered.
  std::vector<StatePiece> state(bool written_only = false) const;
  const ParameterStore& parameters() const { return *parameters_; }
  // Takes the memory of copy_state, which the design has planned. Error(device).
  void take_snapshot_memory();
  // A copy of what this rank writes to a checkpoint, `state(true)`: see StateSnapshot::copy.
  std::vector<StatePiece> copy_state();
  // CRC-32C of what other ranks hold alike: the weights, norms kept apart included, over the data axis (0 with ZeRO 3,
  // where none does), and the norms over the tensor axis.
  uint32_t weights_checksum() const;
  uint32_t norms_checksum() const;

  Workspace& workspace() { return workspace_; }
  // Memory of the host for micro-batches.
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes);

 private:
  std::byte* arena(MemoryClass c) const { return arenas_[static_cast<size_t>(c)]->data(); }
  std::array<std::byte*, num_memory_classes> arena_starts() const;
  void upload_weights(const StatePiece& piece, int64_t first, const float* values, int64_t count);

  const std::shared_ptr<const StepDesign> design_;
  Backend& backend_;
  RankGroups& groups_;
  const std::unique_ptr<SideQueue> copies_;  // null: the backend's memory is the host's
  StepReadback readback_;
  std::unique_ptr<MicroBatchUploads> uploads_;  // null, too
  std::optional<OffloadLanes> offloads_;        // empty: nothing is offloaded
  std::optional<StateSnapshot> snapshot_;       // empty: its memory is not taken
  std::array<std::unique_ptr<DeviceMemory>, num_memory_classes> arenas_;
  Workspace workspace_;
  StepState* state_;  // device
  StepState host_state_;
  std::unique_ptr<ParameterStore> parameters_;
  UnitTickets gathers_;
  std::unique_ptr<Model> model_, evaluation_model_;
  std::unique_ptr<StepAgreement> agreement_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<KeptGradients> kept_;  // null where gradients are kept as they are made
  std::unique_ptr<StepUpdate> update_;  // the two of them
  std::unique_ptr<Executor> executor_, evaluation_executor_;
};

}  // namespace gptrain
