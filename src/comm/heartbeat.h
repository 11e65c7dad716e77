// Watches the processes of a run, so that none waits for ever for one that is gone, stopped or cut off.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/activity.h"
#include "comm/rendezvous.h"

namespace gptrain::inline comm {

// Runs one thread per process, beside the collectives. Several times a second every rank reports its activity to rank 0
// over TCP, and rank 0 answers with its own. A peer is lost if its connection closes or it is silent for the timeout.
// The lowest remaining rank then reports each lost rank (host, last operation, group, bytes, step and phase) on
// standard error within a second, and the policy says whether the remaining ranks end or go on. If rank 0 is lost, the
// others turn to rank 1, and so on. A process ends if the others have closed its connections while it was suspended, or
// if it is on their list of lost ranks.
class Heartbeat {
 public:
  // Consequence of a loss, the same on all ranks. The heartbeat's thread calls both functions.
  struct Policy {
    // Ends this process with exit code 5; does not return. `reporter`: this process has reported the loss.
    std::function<void(bool reporter)> end;
    // Takes the lost ranks, rising, on every remaining rank, which goes on. Null: a loss ends all processes.
    std::function<void(const std::vector<int>& lost)> go_on = {};
  };

  // The loss of one of the first `needed` ranks is the policy's affair; the loss of another is only reported.
  Heartbeat(Rendezvous rendezvous, int rank, int needed, const Timeout& timeout, std::shared_ptr<Activity> activity,
            Policy policy);
  // Leaves the watch. Called by all ranks once none needs another (`finished`), or by a rank that failed: the heartbeat
  // then ends the others if they do not end by themselves within a second.
  void leave(bool finished);
  ~Heartbeat();  // leave(false) if leave was not called

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace gptrain::comm
