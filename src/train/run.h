// The training loop: from a config to a trained model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "config/run_config.h"

namespace gptrain {

struct TrainOptions {
  std::optional<std::string>
      resume;  // "latest" or a folder; not given: from scratch, refused where run.out holds checkpoints
  std::optional<int64_t> steps;         // run this many and stop as at the end
  std::optional<int64_t> profile_step;  // time this step op by op: a table on standard output, and a trace in run.out
};

// Trains on this machine. Writes the step lines to standard output and everything else to config.run.out. Returns
// finished, or requeue after a stop by signal (the state is then saved). Throws Error with the code and the message for
// the user otherwise.
ExitCode train(const RunConfig& config, const TrainOptions& options);

}  // namespace gptrain
