// The training loop of one rank.
#pragma once

#include <memory>

#include "base/error.h"
#include "step/step_design.h"

namespace gptrain::inline train {

class StopSignals;
struct RunContext;
struct TrainOptions;

// Trains one rank of a run. Locks the run's folder, opens the data, sets the step's first state, from a checkpoint or
// from scratch, and trains to the last step of this call, or until a stop. Returns finished, or requeue after a stop
// (the state is saved). Collective over the world. Borrows all but the design. THROWS like choose_start, open_data,
// make_step and load_state, and Error(data), which names step and sample, after saving the state of the last step.
// After Error(diverged), Error(device) or Error(checkpoint) the last checkpoint remains.
ExitCode run_training_loop(const RunContext& context, const TrainOptions& options, const StopSignals& signals,
                           std::shared_ptr<const StepDesign> design);

}  // namespace gptrain::train
