// What copies of saved activations to the host and back cost a step: of how many blocks they hide behind what the device
// computes, and when they are best begun and awaited.
#pragma once

#include <cstdint>
#include <functional>

#include "config/run_config.h"
#include "ops/target.h"
#include "parallel/program.h"
#include "schedule/step_choices.h"

namespace gptrain {

using ActionSeconds = std::function<double(const Action&)>;

// The passes of a stage one after another, with copies beside them. Waits for other stages would leave more time.
struct PlayedPasses {
  double seconds = 0;
  double waited = 0;  // of those: for copies
};
PlayedPasses play_passes(const Schedule& schedule, const BufferBytes& bytes, const Target& target,
                         const ActionSeconds& seconds);

// Of the units that `choices` offload: lets copies end, and begin, as many passes after and before as they take in the
// order in which they follow each other, but no more than there may be copies under way. `options`: a schedule's, with these choices.
void time_copies(UnitChoices& choices, ScheduleOptions options, const BufferBytes& bytes, const Target& target,
                 const ActionSeconds& seconds);

// For offload "hidden": the most blocks of a rank of the stage whose copies the passes hardly wait
// for, by the times of ops and copies on a usual device of the target's kind. None on the CPU, whose copies are made among
// the ops. The stage's first rank is planned, so that all ranks of a stage come to the same number.
int64_t hidden_blocks(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage);

}  // namespace gptrain
