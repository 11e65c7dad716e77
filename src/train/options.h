// The options of `gptrain train`, apart from its config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gptrain {

struct TrainOptions {
  // "latest" or a folder. None: the run starts from scratch, which is refused where run.out holds checkpoints.
  std::optional<std::string> resume;
  std::optional<std::string> init_from;  // a checkpoint whose weights the run starts with where it resumes none
  std::optional<int64_t> steps;          // steps to run, and stop as at the end
  int64_t ranks = 1;                     // threads of this process, each a rank where it is needed
  std::optional<int64_t> profile_step;   // a step to time op by op: a table on standard output, and a trace in run.out
};

}  // namespace gptrain
