// The text and the JSON of a dry run.
#pragma once

#include <string>

#include "config/run_config.h"
#include "model/spec/spec.h"
#include "parallel/memory.h"
#include "planner/dry_run.h"

namespace gptrain {

// For people: tables in plain text.
std::string dry_run_text(const DryRun& run);
// For scripts: one JSON object, keys with units. FLOPs beyond 2^63 are written as floating point.
std::string dry_run_json(const DryRun& run);
// The part of the JSON that a real run repeats in OUT/run.json: parameters, and the bytes of each arena
// ("weights_bytes", ..., "peak_bytes").
std::string memory_json(const RunConfig& config, const ModelSpec& spec, const MemoryPlan& memory);

}  // namespace gptrain
