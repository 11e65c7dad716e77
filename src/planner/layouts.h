// The layouts that a config may have on so many ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "planner/layout_search.h"

namespace gptrain {

// The config with that layout; it is not elastic, and has its budget of activations where the layout has a use for it. Not
// checked: see checked_layout.
RunConfig with_layout(const RunConfig& config, const RunLayout& layout);
// The layout of a config.
RunLayout layout_of(const RunConfig& config, int64_t world_size);

// The value of a key of configs that layouts have ("parallel.tensor"), as a number. Null: they have no such key.
using LayoutValue = int64_t (*)(const RunLayout& layout);
LayoutValue layout_value(std::string_view key);
std::vector<std::string_view> layout_key_paths();  // all of these keys
constexpr std::string_view budget_key = "memory.activation_budget";  // of all layouts that have a use for it

// Error(usage): of the keys that are held ("parallel.tensor=8"), of which `own` has the values, one has a value that no
// search tries. `by_memory`: one for the smallest peak.
void require_tried_values(const RunLayout& own, const std::vector<std::string>& held, bool by_memory, bool on_gpu);

// The same as the config reader makes it of its text, every rule applied. Error(usage): a rule forbids it.
RunConfig checked_layout(const RunConfig& config, const RunLayout& layout);

// Layouts in groups: tensor size, stages and data ranks are the same in a group.
struct LayoutGroup {
  int64_t tensor, pipeline, data;
  bool orders_differ;  // both orders of ranks are tried: on one node, and with one stage or data rank, they are alike
};
// Tensor groups span two nodes at most.
std::vector<LayoutGroup> layout_groups(const RunConfig& config, int64_t world_size, int64_t ranks_per_node);
void for_each_layout(const RunConfig& config, const LayoutGroup& group, const std::function<void(const RunLayout&)>& body);

}  // namespace gptrain
