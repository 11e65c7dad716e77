// Whether a run is to stop before its last step: what this rank wants, and what all ranks have agreed upon.
#pragma once

#include <string>

#include "comm/activity.h"
#include "train/folder.h"
#include "train/signals.h"
#include "step/training_step.h"

namespace gptrain {

class StopRequest {
 public:
  // Borrows all.
  StopRequest(const StopSignals& signals, const FolderWatch& folder, const Activity& activity)
      : signals_(signals), folder_(folder), activity_(activity) {}

  // This rank has been sent a signal, or has heard of one that a process that idles was sent, or can no longer write to
  // the run's folder. Differs from rank to rank.
  bool is_wanted() const { return signals_.requested() || activity_.stop_asked() || !folder_.fault().empty(); }
  // Some rank wants it and all know. The same on all ranks; once true, it stays so.
  bool is_agreed() const { return agreed_; }
  // Of a step's result.
  void note(bool some_rank_wants_it) { agreed_ = agreed_ || some_rank_wants_it; }
  // Agrees now, while no step is under way. Collective over the world. Returns is_agreed().
  bool agree(TrainingStep& step) {
    note(step.agree_to_stop(is_wanted()));
    return agreed_;
  }
  // What made the run stop, for people: of this rank's signal, its name.
  std::string cause() const { return signals_.requested() ? signals_.name() : "a signal to another rank"; }

 private:
  const StopSignals& signals_;
  const FolderWatch& folder_;
  const Activity& activity_;
  bool agreed_ = false;
};

}  // namespace gptrain
