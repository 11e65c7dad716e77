// Watches over the processes of a run: none waits for ever for one that is gone, stopped or cut off.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/activity.h"
#include "comm/rendezvous.h"

namespace gptrain {

// One thread per process, beside the collectives. All report to rank 0 over TCP, several times a second, what they are
// doing; rank 0 answers with what it does. A peer whose connection closes, or that is silent for the timeout, is
// lost: the lowest rank that is left reports each lost rank (host, last operation, group, bytes, step and phase) on
// standard error within a second, and every process ends with exit code 5. When rank 0 is lost, the others turn to rank
// 1, and so on. A process that was stopped, and finds that the others have gone on without it, ends as well.
class Heartbeat {
 public:
  // Ends this process with exit code 5 and does not return; called from the heartbeat's thread, on the
  // process that reports the loss (`reporter`) and on all others.
  using End = std::function<void(bool reporter)>;

  // The loss of one of the first `needed` ranks ends all processes; that of another is reported, and ends nothing.
  Heartbeat(Meeting meeting, int rank, int needed, const Timeout& timeout, std::shared_ptr<Activity> activity,
            End end);
  // Must be called by all ranks once they need each other no more (finished), or when this rank has failed by itself:
  // the others then end, too, unless they end by themselves within a second.
  void leave(bool finished);
  ~Heartbeat();  // leave(false) if leave was not called

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace gptrain
