// Proves that lists of passes are a step of training that ends, with gradients summed in the one order.
#pragma once

#include <string>
#include <vector>

#include "schedule/pipeline/pipeline.h"

namespace gptrain {

// The first fault, with its stage and pass; empty if there is none. What must hold: every chunk has each pass of each
// micro-batch once, on the stage that holds the chunk; backwards are whole or split as the schedule says; the forwards
// of a chunk, and the passes that make its weight gradients, are in micro-batch order; stages that run their lists in
// order, each pass when it has what it needs, come to the end.
std::string check_passes(const PipelineShape& shape, const PipelineSchedule& schedule,
                         const std::vector<std::vector<Pass>>& stages);
// The same of the schedule's own lists.
std::string check_passes(const PipelineShape& shape, const PipelineSchedule& schedule);

}  // namespace gptrain
