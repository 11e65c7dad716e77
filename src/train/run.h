// A run: from a config to a trained model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "comm/bootstrap.h"
#include "config/run_config.h"
#include "train/resume_changes.h"

namespace gptrain {

struct TrainOptions {
  std::optional<std::string>
      resume;  // "latest" or a folder; not given: from scratch, refused where run.out holds checkpoints
  std::optional<std::string> init_from;  // a checkpoint whose weights the run starts with where it resumes none
  std::optional<int64_t> steps;         // run this many and stop as at the end
  int64_t ranks = 1;                    // threads of this process, each a rank where it is needed
  AcceptedChanges accepted = {};
  std::optional<int64_t> profile_step;  // time this step op by op: a table on standard output, and a trace in run.out
};

// For a process that cannot train because of `error`, which is most often so on all ranks: rank 0 prints it for all, at
// once, and then meets the others, which waits for a bounded time. Throws an Error of its code. That has a message
// where the ranks differ in what is wrong, or do not meet: how they do on rank 0, and before it the error itself on
// others.
[[noreturn]] void refuse_together(const Launch& launch, const Error& error);

// Trains, as the process that `launch` says, or where this process is alone on options.ranks threads of it. The config
// was loaded for as many ranks; with parallel.elastic some may be left over (config/elastic.h). Rank 0 writes the step
// lines to standard output and everything else to config.run.out.
// Returns finished, or requeue after a stop by signal (the state is then saved). Throws Error with the code and the
// message for the user otherwise.
ExitCode train(const RunConfig& config, const TrainOptions& options, const Launch& launch);

}  // namespace gptrain
