// Proves that the schedules of all stages of a pipeline fit together and end.
#pragma once

#include <span>
#include <string>

#include "schedule/schedule.h"

namespace gptrain {

// `stages`: of every stage, in order, for one program. Each must be sound by itself (`check`). Empty if
//   - what a stage sends on each way is what its neighbour receives there, message by message, and
//   - all come to the end with no buffering at all: the transfers of a way run one after another, each when both its
//     send and its receive have begun, and an action that awaits one lasts until it has run; sum_tied begins when both
//     stages that hold the table are at it, norm when all stages are.
// Else the first fault with its stage and action; of stages that wait for ever, the first. Sums and gathers of
// parameters are among ranks of one stage, which play one list, and are waited for by no other stage.
std::string check_stages(std::span<const Schedule> stages);

}  // namespace gptrain
