// Parts of the training loop: the input, the step, and the objects for all work beside a step.
#pragma once

#include <memory>
#include <optional>

#include "ops/backend.h"
#include "step/machine_limits.h"
#include "step/training_step.h"
#include "step/update_resources.h"
#include "train/batches.h"
#include "train/checkpointing.h"
#include "train/folder.h"
#include "train/loss_watch.h"
#include "train/options.h"
#include "train/reporter.h"
#include "train/run_context.h"
#include "train/samples.h"
#include "train/set_up.h"
#include "train/signals.h"
#include "train/stop_request.h"
#include "train/validation.h"

namespace gptrain::inline train {

struct LoopParts {
  // Locks the run's folder, opens the data and makes the parts, one after the other. Collective, borrowed objects and
  // errors: see run_training_loop.
  LoopParts(const RunContext& context, const TrainOptions& options, const StopSignals& signals,
            std::shared_ptr<const StepDesign> design);

  const Start start;
  FolderWatch folder;
  StopRequest stop;
  RunData data;
  const MachineLimits limits;  // measured once all input is found sound, and before the arenas take their memory
  std::unique_ptr<DeviceMemory> rings;             // declared before `step`, which may copy from it until destroyed
  const std::unique_ptr<UpdateResources> updates;  // declared before `step`, which uses them
  const std::unique_ptr<TrainingStep> step;
  Reporter reporter;
  Checkpointing checkpoints;
  LossWatch losses;
  Samples samples;
  std::optional<Validation> validation;  // set at the constructor's end
};

}  // namespace gptrain::train
