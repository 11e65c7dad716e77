// A quick search for a faster layout of the same devices, which a dry run makes beside its plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "machine/event_times.h"
#include "planner/layout_search.h"

namespace gptrain::inline planner {

// Share by which a step must be longer than that of another layout before a dry run names the other.
constexpr double slow_layout_share = 0.10;

struct FasterLayout {
  RunLayout layout;
  double step_seconds = 0;                 // as the layout's dry run says
  std::vector<std::string> settings = {};  // --set settings that make it of the config ("parallel.tensor=1")
};

// Returns the fastest layout that a quick search finds, planned in full, if a step of `step_seconds` is longer by more
// than slow_layout_share. Tries far fewer layouts than search_layouts, so that it takes a fraction of a second: tensor
// sizes within a node, up to 16 stages with 1F1B or as many chunks as divide the layers, ZeRO 1 (without stages 2 and
// 3, too), up to 16 sequences a micro-batch, and no offloading. Sets no settings.
std::optional<FasterLayout> find_faster_layout(const RunConfig& config, const Machine& machine, int64_t world_size,
                                               double step_seconds);

// Returns the --set settings that change the layout `own` into `other`.
std::vector<std::string> settings_between(const RunLayout& own, const RunLayout& other);

}  // namespace gptrain::planner
