// A run: from a config to a trained model.
#pragma once

#include "base/error.h"
#include "comm/bootstrap.h"
#include "config/run_config.h"
#include "train/options.h"

namespace gptrain::inline train {

// Trains as the process that `launch` describes, or if this process is alone, on options.ranks of its threads.
// REQUIRES: the config was loaded for this number of ranks. With parallel.elastic some ranks may be left over
// (config/elastic.h). Rank 0 writes the step lines to standard output and everything else to config.run.out. Returns
// finished, or requeue after a stop by signal (the state is then saved). Throws Error with the code and the message for
// the user otherwise.
ExitCode train(const RunConfig& config, const TrainOptions& options, const Launch& launch);

}  // namespace gptrain::train
