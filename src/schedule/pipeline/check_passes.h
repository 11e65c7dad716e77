// Checks that lists of passes make one training step and come to an end without deadlock, and that gradients are summed
// in micro-batch order.
#pragma once

#include <string>
#include <vector>

#include "schedule/pipeline/pipeline.h"

namespace gptrain::inline schedule {

// Returns "", or a text about the first fault with its stage and pass. A list is sound if
//   - every chunk has each pass of each micro-batch once, on the stage that holds the chunk,
//   - backward passes are whole or split as the schedule says,
//   - the forwards of a chunk, and the passes that compute its weight gradients, are in micro-batch order, and
//   - stages that run their lists in order, each pass once its inputs exist, come to the end.
std::string check_passes(const PipelineShape& shape, const PipelineSchedule& schedule,
                         const std::vector<std::vector<Pass>>& stages);
// Checks the schedule's own lists.
std::string check_passes(const PipelineShape& shape, const PipelineSchedule& schedule);

}  // namespace gptrain::schedule
