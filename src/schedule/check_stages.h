// Proves that the schedules of all stages of a pipeline fit together and end.
#pragma once

#include <span>
#include <string>

#include "schedule/schedule.h"

namespace gptrain::inline schedule {

// REQUIRES: `stages` are the schedules of all stages of one program, in order, and each passes `check`.
// Returns "" if
//   - each stage receives exactly the messages that its neighbour sends, in the same order, and
//   - all stages come to the end even without buffering: transfers in one direction run one after another, each once
//     both its send and its receive have begun; an action that awaits a transfer lasts until the transfer has run;
//     sum_tied begins once both stages that hold the table have reached it, norm once all stages have.
// Else returns a text about the first fault, with its stage and action; in a deadlock, of the first stage that waits
// for ever. Sums and gathers of parameters are ignored: they involve only ranks of one stage, which run the same list.
std::string check_stages(std::span<const Schedule> stages);

}  // namespace gptrain::schedule
