// The text and the JSON of a dry run.
#pragma once

#include <string>

#include "config/run_config.h"
#include "model/spec/spec.h"
#include "parallel/memory.h"
#include "planner/dry_run.h"

namespace gptrain::inline report {

// Returns tables in plain text, for people.
std::string dry_run_text(const DryRun& run);
// Returns one JSON object for scripts; keys have units. FLOPs beyond 2^63 are written as floating point.
std::string dry_run_json(const DryRun& run);
// Returns the part of the JSON that a real run repeats in OUT/run.json: parameters, and the bytes of each memory class
// ("weights_bytes", ..., "peak_bytes").
std::string memory_json(const StepConfig& config, const ModelSpec& spec, const MemoryPlan& memory);

}  // namespace gptrain::report
