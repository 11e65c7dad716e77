// Processes that the launcher started and the run does not need (parallel.elastic). These processes wait until the
// run ends, and exit with its code. If one exited earlier, the launcher might kill the run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "train/signals.h"

namespace gptrain::inline train {

class IdleRanks {
 public:
  // Collective over all `started` processes. Processes whose rank is not below the size of the world idle. Borrows the
  // world.
  IdleRanks(World& world, int started);

  // Returns true if this process idles.
  bool is_one() const { return is_one_; }
  // Waits for the end of the run and returns its exit code. A signal to this process stops the run. THROWS an Error
  // with an empty message if the run has failed. Call on idle processes.
  ExitCode wait(const StopSignals& signals) const;
  // Calls `run` and returns its result or rethrows its exception; rank 0 sends the exit code to the idle processes.
  // Call on ranks that train.
  ExitCode tell(const std::function<ExitCode()>& run) const;

 private:
  void tell_all(ExitCode code) const;

  World& world_;
  bool is_one_;
  // On rank 0: one group with each idle process, so that a lost one does not block the others. On an idle process: its
  // group with rank 0. Empty on other ranks.
  std::vector<std::unique_ptr<Communicator>> groups_;
};

}  // namespace gptrain::train
