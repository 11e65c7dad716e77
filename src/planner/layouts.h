// The layouts that a config may have on a number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "planner/layout_search.h"

namespace gptrain::inline planner {

// THROWS Error(usage) if the config has a key with which no layouts are searched.
void require_layouts(const StepConfig& config);

// Returns the config with that layout, unchecked: see checked_layout. memory.activation_budget is kept only if
// recompute is optimal.
RunConfig with_layout(const RunConfig& config, const RunLayout& layout);
// Returns the layout of a config on `world_size` ranks.
RunLayout layout_of(const RunConfig& config, int64_t world_size);

// Returns the function that reads a config key ("parallel.tensor") from a layout as a number; null if layouts do not
// have the key.
using LayoutValue = int64_t (*)(const RunLayout& layout);
LayoutValue layout_value(std::string_view key);
std::vector<std::string_view> layout_key_paths();                    // all keys that layouts have
constexpr std::string_view budget_key = "memory.activation_budget";  // same for all layouts of a search

// THROWS Error(usage) if a held setting ("parallel.tensor=8") has a value that no search tries. `own` has the values of
// the held keys. `by_memory`: the search is for the smallest peak.
void require_tried_values(const RunLayout& own, const std::vector<std::string>& held, bool by_memory, bool on_gpu);

// Returns the config with that layout as if read from a file. THROWS Error(usage) if a rule of configs forbids it.
RunConfig checked_layout(const RunConfig& config, const RunLayout& layout);

// Layouts with the same tensor size, context size and method, mesh of experts, number of stages and number of data
// ranks.
struct LayoutGroup {
  int64_t tensor, context;
  ContextMethod context_method;
  int64_t pipeline, data;
  int64_t expert = 1, expert_tensor = 1;
  bool orders_differ;  // whether both rank orders are tried; with one node, stage or data rank they are equal
};
// Returns the layout of a group with the defaults of all other keys.
RunLayout layout_of(const LayoutGroup& group);
// Returns all groups in which tensor and context ranks together span at most two nodes. Context sizes above 1 are tried
// only for sequences of 8,192 tokens or more, or if the config has one.
std::vector<LayoutGroup> layout_groups(const StepConfig& config, int64_t world_size, int64_t ranks_per_node);
// Calls `body` for each layout of a group, with all combinations of the other keys' values that a search tries.
void for_each_layout(const RunConfig& config, const LayoutGroup& group,
                     const std::function<void(const RunLayout&)>& body);

}  // namespace gptrain::planner
