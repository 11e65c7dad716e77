// The options of `gptrain train`, apart from its config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/resume_changes.h"

namespace gptrain::inline train {

struct TrainOptions {
  // "latest" or a folder; none: the run starts from scratch, which is refused if run.out holds checkpoints.
  std::optional<std::string> resume;
  std::optional<std::string> init_from;  // checkpoint whose weights the run starts with if it resumes no checkpoint
  std::optional<int64_t> steps;          // number of steps to run in this call; none: to the end
  int64_t ranks = 1;                     // threads of this process, each a rank if the run needs it
  AcceptedChanges accepted = {};
  std::optional<int64_t> profile_step;  // step to profile: a table on standard output, and a trace in run.out
};

}  // namespace gptrain::train
