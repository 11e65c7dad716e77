// What becomes of a run whose loss is not finite (run.max_skipped_steps), or spikes (run.rollback).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "data/dataset.h"
#include "step/training_step.h"
#include "train/checkpointing.h"
#include "train/folder.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/run_state.h"

namespace gptrain {

// Every rank has one and calls it alike. The loss of a step is the same number on all of them, and so is what follows.
//
// A run that goes back goes on from the checkpoint, with samples left out, to the bit as a run does that leaves them
// out from the beginning (data.skip_samples). The checkpoint is saved again with what is left out. All that a decision
// depends on is in the run's progress, which checkpoints hold, so that a resumed run decides alike.
class LossWatch {
 public:
  // Borrows all.
  LossWatch(const RunContext& context, FolderWatch& folder, Checkpointing& checkpoints, Reporter& reporter,
            Dataset& data)
      : context_(context), folder_(folder), checkpoints_(checkpoints), reporter_(reporter), data_(data) {}

  // Leaves out of the data what the run has left out so far. Before the first step. Error(usage): the data do not last
  // to run.steps. Collective over the world.
  void begin(const RunProgress& progress);

  // After each step, which `progress` counts; notes its loss there.
  void look(RunProgress& progress, const StepResult& result);
  // Whether the state after the last step may be what is wrong: no good checkpoint is given up for it.
  bool is_doubtful() const { return doubtful_; }
  // Ends the run where too many steps were skipped: Error(diverged).
  void end_if_diverged(const RunProgress& progress);
  // The same where the run's last step was.
  void end_if_skipped_last(const RunProgress& progress) const;

  // Whether the run is to go back once no step is under way.
  bool has_spiked() const { return spiked_; }
  // Gives the step the state of the last checkpoint from before the spike, and returns the run's progress there. Where
  // there is none, a warning says so, and the run goes on from `progress`. Collective over the world, while no step is
  // under way. Error(diverged): the run has gone back run.rollback.limit times. Errors of loading and saving.
  RunProgress go_back(const RunProgress& progress);

 private:
  std::string way_back() const;
  std::string before_rise() const;  // the checkpoint to go back to, where the manifests tell it
  std::string spike_text(const LossHistory& losses) const;
  Error diverged(const std::string& what) const;

  const RunContext& context_;
  FolderWatch& folder_;
  Checkpointing& checkpoints_;
  Reporter& reporter_;
  Dataset& data_;
  bool doubtful_ = false, spiked_ = false;
  int64_t spike_end_ = 0;  // the step that made it a spike
};

}  // namespace gptrain
