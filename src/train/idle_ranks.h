// Processes that a run was started with and does not need (parallel.elastic): they wait until it ends, and end as it
// does. A launcher that saw one of them end before the others might end those.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "train/signals.h"

namespace gptrain {

class IdleRanks {
 public:
  // Collective over all `started` processes, of which those beyond the size of the world idle. Borrows the world.
  IdleRanks(World& world, int started);

  // Whether this process is one.
  bool is_one() const { return is_one_; }
  // Of one: waits for the end of the run and returns its exit code. A signal to it stops the run, as one to a rank that
  // trains does. Error, with an empty message: the run has failed.
  ExitCode wait(const StopSignals& signals) const;
  // Of a rank: runs `run`, and rank 0 tells those that idle how it has ended. Throws what `run` throws.
  ExitCode tell(const std::function<ExitCode()>& run) const;

 private:
  void tell_all(ExitCode code) const;

  World& world_;
  bool is_one_;
  // Of rank 0 with each that idles, so that one that is lost keeps no other waiting; elsewhere this process's own, or
  // none.
  std::vector<std::unique_ptr<Communicator>> groups_;
};

}  // namespace gptrain
