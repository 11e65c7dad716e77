// A request to stop a run before its last step: this rank's wish, and the agreement of all ranks.
#pragma once

#include <string>

#include "comm/activity.h"
#include "step/training_step.h"
#include "train/folder.h"
#include "train/signals.h"

namespace gptrain::inline train {

class StopRequest {
 public:
  // Borrows all.
  StopRequest(const StopSignals& signals, const FolderWatch& folder, const Activity& activity)
      : signals_(signals), folder_(folder), activity_(activity) {}

  // Returns true if this rank or an idle process got a signal, or if this rank can no longer write to the run's folder.
  // Differs from rank to rank. Once true, it stays true.
  bool is_wanted() const { return signals_.requested() || activity_.stop_asked() || !folder_.fault().empty(); }
  // Returns true if all ranks know that some rank wants to stop. The same on all ranks; once true, it stays true.
  bool is_agreed() const { return agreed_; }
  // Takes over StepResult::stop. Call after each step.
  void note(bool some_rank_wants_it) { agreed_ = agreed_ || some_rank_wants_it; }
  // Lets the ranks agree now. Returns is_agreed(). Collective over the world. REQUIRES: no step is running.
  bool agree(TrainingStep& step) {
    note(step.agree_to_stop(is_wanted()));
    return agreed_;
  }
  // Returns the cause of the stop, for people: the name of this rank's signal, if it got one.
  std::string cause() const { return signals_.requested() ? signals_.name() : "a signal to another rank"; }

 private:
  const StopSignals& signals_;
  const FolderWatch& folder_;
  const Activity& activity_;
  bool agreed_ = false;
};

}  // namespace gptrain::train
