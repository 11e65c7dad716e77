// The parts of a dry run about ranks and pipeline stages, as text and as JSON.
#pragma once

#include <string>

#include "base/json.h"
#include "planner/dry_run.h"

namespace gptrain::inline report {

// Return sections of the text; empty for one rank, or one stage.
std::string ranks_section(const DryRun& input);
std::string pipeline_section(const DryRun& input);

// Returns the rows of steps that differ from most of the run's; empty if all are alike.
std::string other_steps_text(const StepForecast& forecast);
void add_other_steps(nlohmann::ordered_json& json, const StepForecast& forecast);

nlohmann::ordered_json world_json(const DryRun& input);
nlohmann::ordered_json pipeline_json(const DryRun& input);

}  // namespace gptrain::report
