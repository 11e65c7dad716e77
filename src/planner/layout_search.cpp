#include "planner/layout_search.h"

#include <fmt/format.h>
#include <stdexcept>

#include "config/run_config.h"

namespace gptrain::inline planner {
namespace {

std::string recompute_word(const RunLayout& layout) {
  switch (layout.recompute) {
    case RecomputeKind::none:
      return "none";
    case RecomputeKind::selective:
      return "selective";
    case RecomputeKind::block:
      return "block";
    case RecomputeKind::every_nth:
      return fmt::format("every_nth {}", layout.recompute_interval);
    case RecomputeKind::optimal:
      return "optimal";
  }
  return "";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> layout_keys(const RunLayout& layout) {
  std::string schedule(pipeline_order_names[static_cast<size_t>(layout.schedule)]);
  if (layout.schedule == PipelineOrder::interleaved) schedule += fmt::format(" of {} chunks", layout.virtual_stages);
  return {{"parallel.tensor", fmt::format("{}", layout.tensor)},
          {"parallel.sequence", layout.sequence ? "true" : "false"},
          {"parallel.pipeline", fmt::format("{}", layout.pipeline)},
          {std::string(schedule_key), layout.pipeline > 1 ? schedule : "-"},
          {"parallel.layers_per_stage", layout.is_balanced ? "balanced" : "default"},
          {std::string(rank_order_key), std::string(rank_order_names[static_cast<size_t>(layout.rank_order)])},
          {"parallel.zero", fmt::format("{}", layout.zero)},
          {"batch.micro", fmt::format("{}", layout.micro)},
          {std::string(recompute_key), recompute_word(layout)},
          {std::string(offload_key), offload_name(layout.offload)}};
}

std::string value_text(const RunLayout& layout, std::string_view key) {
  for (auto& [path, value] : layout_keys(layout))
    if (path == key) return value;
  throw std::logic_error("not a key of layouts");
}

}  // namespace gptrain::planner
