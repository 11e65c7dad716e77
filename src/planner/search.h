// The search for a config's best layout: drops layouts by lower bounds, estimates the rest, and plans the best in full.
#pragma once

#include "config/run_config.h"
#include "planner/layout_search.h"
#include "planner/predict.h"
#include "planner/search_options.h"

namespace gptrain::inline planner {

// Searches all values of the keys of a RunLayout; batch.global and all other keys stay. Layouts whose memory.recompute
// is "optimal" keep to memory.activation_budget. THROWS Error(usage) if no layout is possible on `gpus` devices, if
// none of those searched has the held values, or if no planned layout stays within the budget.
LayoutSearch search_layouts(const RunConfig& config, const Machine& machine, const SearchOptions& options);

}  // namespace gptrain::planner
