// Reacts to a loss that is not finite (run.max_skipped_steps) or spikes (run.rollback).
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

namespace gptrain::inline train {

// Every rank has one object and makes the same calls. A step's loss is the same number on all ranks, and so is every
// decision.
//
// A run that goes back continues from the checkpoint with some samples left out, bit for bit like a run that leaves
// them out from the beginning (data.skip_samples). The checkpoint is saved again with the list of these samples.
// Decisions depend only on the run's progress, which checkpoints hold, so a resumed run decides alike.
class LossWatch {
 public:
  // Borrows all.
  LossWatch(const RunContext& context, FolderWatch& folder, Checkpointing& checkpoints, Reporter& reporter,
            Dataset& data)
      : context_(context), folder_(folder), checkpoints_(checkpoints), reporter_(reporter), data_(data) {}

  // Removes from the data the samples that the run has left out so far. Call before the first step. THROWS Error(usage)
  // if the data do not last to run.steps. Collective over the world.
  void begin(const RunProgress& progress);

  // Call after each step; `progress` includes the step and its loss. Adds the loss to progress.losses if run.rollback
  // is on. After a lost validation sets progress.loss to NaN.
  void look(RunProgress& progress, const StepResult& result);
  // Returns true if the state after the last step may be damaged. A checkpoint of it must not replace a good one.
  bool is_doubtful() const { return doubtful_; }
  // THROWS Error(diverged) if more than run.max_skipped_steps steps in a row were skipped; writes the page and waits
  // for the save first.
  void end_if_diverged(const RunProgress& progress);
  // THROWS Error(diverged) if the run's last step was skipped, or if the last validation is lost. Call at the end.
  void end_if_lost(const RunProgress& progress) const;
  // Call after each validation; `is_lost`: its loss was not finite. The state is then damaged, and the manifests of
  // checkpoints say so until a validation is finite again.
  void note_validation(RunProgress& progress, bool is_lost);

  // Returns true if the run must go back once no step is running.
  bool has_spiked() const { return spiked_; }
  // Loads the last checkpoint from before the spike and returns the run's progress there. If there is none, prints a
  // warning and returns `progress` with the spike accepted: its losses join the window. Collective over the world,
  // while no step is running. THROWS Error(diverged) if the run has gone back run.rollback.limit times, and errors of
  // loading and saving.
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
  bool lost_validation_ = false;     // the last validation was not finite
  std::optional<double> step_loss_;  // loss of the last step; none: no step yet
  int64_t spike_end_ = 0;            // last step of the spike
};

}  // namespace gptrain::train
