// Everything one rank needs to run training steps: the model's units, the schedule, the arenas, the executor and the
// optimizer, on a given backend. On the `plan` backend the very same object is the dry run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "config/run_config.h"
#include "model/units.h"
#include "ops/backend.h"
#include "optim/optimizer.h"
#include "optim/step_agreement.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "parallel/parameters.h"
#include "train/step_readback.h"

namespace gptrain {

// The memory of a rank's step, as `plan_step` finds it.
struct StepMemory {
  MemoryPlan arenas;
  int64_t frame_bytes = 0;    // high-water mark of tensors inside actions
  int64_t scratch_bytes = 0;  // the most any op asks for; workspace = scratch + frames
};

// The ring of the host's memory into which micro-batches are read ahead, in micro-batches.
struct PrefetchRing {
  int kept;   // of those that are in use, or on their way to a device
  int depth;  // of all
};
// For a device whose memory is apart, those of two steps are kept, as many as the host may have queued.
PrefetchRing prefetch_ring(const RunConfig& config, const Target& target);
int64_t prefetch_ring_bytes(const RunConfig& config, const Target& target);
// One ring for training, and one for validation where the config has some.
int64_t all_rings_bytes(const RunConfig& config, const Target& target);

struct StepResult {
  double loss = 0;        // mean cross-entropy of the counted tokens, nats
  double grad_norm = 0;   // before clipping
  bool skipped = false;   // the loss or the norm was not finite; nothing was updated
  bool stop = false;      // some rank wants to stop
  int64_t updates = 0;    // steps of the run that were not skipped
  double loss_scale = 1;  // that the gradients were made with (not 1 only with fp16)
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
  // Takes the arenas that `memory` names from `backend`. Borrows the backend and the groups. Weights and state are
  // undefined until initialize or the caller's writes to `state` (followed by weights_changed).
  TrainingStep(const RunConfig& config, const StepMemory& memory, Backend& backend, RankGroups& groups);
  // Waits until the peers have what is being gathered from this rank's memory.
  ~TrainingStep();
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  const ModelSpec& spec() const { return spec_; }
  Backend& backend() const { return backend_; }
  // Bytes that the arenas really took, the host's ring of micro-batches included.
  MemoryPlan taken() const;
  int64_t counted_tokens() const { return counted_tokens_; }  // of a step

  // Finds the algorithms of all products of a step and of an evaluation that the backend has a choice for, by timing
  // them on these arenas, which hold anything afterwards. Before anything else; collective as a step is.
  void choose_algorithms();
  // Initial weights, zero optimizer state, no updates done. `progress(elements)`, if given, hears of the elements drawn so far.
  void initialize(const std::function<void(int64_t)>& progress = {});
  // Zero weights and optimizer state, padding too, which no tensor's values reach. Before they are written from outside.
  void clear_state();
  // Call after the state's weights were written from outside: makes the compute weights from them, on all ranks.
  void weights_changed();
  void set_updates(int64_t updates);  // continues a run
  void set_loss_scale(const LossScale& scale);
  // Of the next step; none but with fp16.
  std::optional<LossScale> loss_scale() const {
    return config_.precision.scales_loss() ? std::optional(host_state_.loss_scale) : std::nullopt;
  }

  // Begins a step. The source brings this rank's micro-batches. `stop_wanted` is asked late in the step, and is kept
  // until the next one; what any rank answers, all find in the result, and a rank that wants to stop goes on wanting
  // it.
  void begin(double learning_rate, MicroBatchSource& source, ActionObserver* observer = nullptr,
             const std::function<bool()>& stop_wanted = {});
  // Waits for the oldest step that has begun and not ended. `source` is done with when all have.
  StepResult end();
  int64_t begun() const { return readback_.ahead(); }  // steps that have not ended
  // How many of them there may be when another one begins. 0 on the CPU, where a step is over when `begin` returns.
  // Where it is 1, the device has work while the host reads a result and begins the next step. Everything but begin and
  // end is to be called with none.
  int64_t most_ahead() const { return copies_ != nullptr ? StepReadback::most_ahead - 1 : 0; }
  // One whole step.
  StepResult run(double learning_rate, MicroBatchSource& source, ActionObserver* observer = nullptr,
                 const std::function<bool()>& stop_wanted = {});
  // Whether any rank wants to stop. Collective over the world.
  bool agree_to_stop(bool wanted) { return agreement_->agree_to_stop(wanted); }
  // Sum of the cross-entropy over `micro_batches` micro-batches of every data rank, without dropout. Weights do not
  // change.
  double evaluate(int64_t micro_batches, MicroBatchSource& source);

  // This rank's training state, in device memory (see ParameterStore::state). Waits for what is still being gathered.
  std::vector<StatePiece> state(bool written_only = false) const;
  const ParameterStore& parameters() const { return *parameters_; }
  // CRC-32C of what other ranks hold alike: the weights, norms kept apart included, over the data axis (0 with ZeRO 3,
  // where none does), and the norms over the tensor axis.
  uint32_t weights_checksum() const;
  uint32_t norms_checksum() const;

  Workspace& workspace() { return workspace_; }
  // Memory of the host for micro-batches.
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes);

 private:
  std::byte* arena(MemoryClass c) const { return arenas_[static_cast<size_t>(c)]->data(); }
  ArenaMemory arena_memory() const;
  uint32_t checksum(const std::byte* buffer, int64_t bytes, uint32_t before) const;
  void upload_weights(const StatePiece& piece, int64_t first, const float* values, int64_t count);
  void zero(std::byte* buffer, int64_t bytes);
  // Writes the pattern over the buffer, as often as it fits.
  void fill(std::byte* buffer, int64_t bytes, const std::vector<std::byte>& pattern);

  RunConfig config_;
  Backend& backend_;
  RankGroups& groups_;
  ModelSpec spec_;
  std::vector<TensorShard> shards_;
  Sharding sharding_;
  ParameterLayout layout_;
  Schedule schedule_, evaluation_;
  const std::unique_ptr<SideQueue> copies_;  // null: the backend's memory is the host's
  StepReadback readback_;
  std::unique_ptr<MicroBatchUploads> uploads_;  // null, too
  std::array<std::unique_ptr<DeviceMemory>, num_memory_classes> arenas_;
  int64_t counted_tokens_;
  Workspace workspace_;
  StepState* state_;  // device
  StepState host_state_;
  std::unique_ptr<ParameterStore> parameters_;
  UnitTickets gathers_;
  std::unique_ptr<Units> units_, evaluation_units_;
  std::unique_ptr<StepAgreement> agreement_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<StepUpdate> update_;  // the two of them
  std::unique_ptr<Executor> executor_, evaluation_executor_;
};

// What of a step's make-up the config and the rank's place decide.
std::vector<bool> recomputed_units(const RunConfig& config);  // embedding, blocks, head
Sharding make_sharding(const RunConfig& config, const RankGroups& groups);
ScheduleOptions schedule_options(const RunConfig& config, const RankGroups& groups);
// Bytes of each arena, but for the workspace, which only a run of the step can tell.
MemoryPlan arena_bytes(const RunConfig& config, RankGroups& groups, const Target& target);

}  // namespace gptrain
