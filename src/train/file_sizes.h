// Sizes of the files that a run will write, against the process's limit (ulimit -f).
#pragma once

#include <memory>

#include "config/run_config.h"
#include "step/plan_step.h"
#include "step/step_design.h"
#include "train/options.h"

namespace gptrain::inline train {

// THROWS Error(machine) unless the process may write the largest file of the rank: its part of a checkpoint and, on
// rank 0, the manifest, metrics.jsonl and report.html at the end of the run. `design`: the rank's.
void require_file_sizes(const PlanCase& run, const TrainOptions& options,
                        const std::shared_ptr<const StepDesign>& design, int rank);

}  // namespace gptrain::train
