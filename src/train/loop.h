// The training loop of one rank.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/loss_scale.h"
#include "step/machine_limits.h"
#include "step/step_profiler.h"
#include "step/training_step.h"
#include "train/batches.h"
#include "train/checkpointing.h"
#include "train/folder.h"
#include "train/loss_watch.h"
#include "train/options.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/run_state.h"
#include "train/samples.h"
#include "train/set_up.h"
#include "train/signals.h"
#include "train/stop_request.h"
#include "train/validation.h"

namespace gptrain::inline train {

// Every rank of a world has one object and makes the same calls.
class TrainingLoop {
 public:
  // Locks the run's folder, opens the data, and sets the step's first state, from a checkpoint or from scratch.
  // Collective over the world. Borrows all but the design. `profiler` is the one through which the context's backend
  // runs ops if options.profile_step is given, else null. THROWS like choose_start, open_data, make_step and
  // load_state.
  TrainingLoop(const RunContext& context, const TrainOptions& options, const StopSignals& signals,
               StepProfiler* profiler, std::shared_ptr<const StepDesign> design);

  // Trains to the last step of this call, or until a stop. Returns finished, or requeue after a stop (the state is
  // saved). THROWS Error(data), which names step and sample, after saving the state of the last step. After
  // Error(diverged), Error(device) or Error(checkpoint) the last checkpoint remains.
  ExitCode run();

 private:
  ExitCode train();
  ExitCode find_nothing_to_do();
  void run_steps();
  bool go_back();
  bool wants_to_stop() const { return stop_.is_wanted() || checkpoints_.has_failed(); }
  bool is_stopping();
  void begin_step(Prefetcher& batches);
  void end_step(const Prefetcher& batches);
  void end_void(const Prefetcher& batches);
  [[noreturn]] void save_and_end(const Error& error);
  void count(const StepResult& result);
  void warn_of_no_checkpoints(double step_seconds);
  void do_what_is_due();
  bool validate();
  bool needs_result(int64_t step) const;
  bool is_last() const { return progress_.step == start_.last_step; }
  int64_t begun_steps() const { return progress_.step + step_->begun(); }
  ExitCode stopped() const;

  const RunContext& context_;
  const int64_t profile_step_;  // 0: none
  StepProfiler* const profiler_;
  const Start start_;
  FolderWatch folder_;
  StopRequest stop_;
  RunData data_;
  const MachineLimits limits_;  // measured once all input is found sound, and before the arenas take their memory
  std::unique_ptr<DeviceMemory> rings_;             // declared before step_, which may copy from it until destroyed
  const std::unique_ptr<UpdateResources> updates_;  // declared before step_, which uses them
  const std::unique_ptr<TrainingStep> step_;
  Reporter reporter_;
  Checkpointing checkpoints_;
  LossWatch losses_;
  Samples samples_;
  std::optional<Validation> validation_;  // set at the constructor's end
  RunProgress progress_;
  std::optional<LossScale> loss_scale_;  // scale after the last step; none: no loss scaling
  int64_t first_step_;                   // steps done before this call
  std::deque<BegunStep> begun_;          // the oldest first
};

}  // namespace gptrain::train
