#include "planner/layout_search.h"

#include <fmt/format.h>

#include "config/run_config.h"

namespace gptrain {
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

std::string offload_word(const RunLayout& layout) {
  if (layout.offload > 0) return fmt::format("{}", layout.offload);
  if (layout.offload == optimal_offload) return "optimal";
  return layout.offload == no_offload ? "none" : layout.offload == hidden_offload ? "hidden" : "all";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> layout_keys(const RunLayout& layout) {
  std::string schedule(pipeline_order_names[static_cast<size_t>(layout.schedule)]);
  if (layout.schedule == PipelineOrder::interleaved) schedule += fmt::format(" of {} chunks", layout.virtual_stages);
  return {{"parallel.tensor", fmt::format("{}", layout.tensor)},
          {"parallel.sequence", layout.sequence ? "true" : "false"},
          {"parallel.pipeline", fmt::format("{}", layout.pipeline)},
          {"parallel.pipeline_schedule", layout.pipeline > 1 ? schedule : "-"},
          {"parallel.layers_per_stage", layout.is_balanced ? "balanced" : "default"},
          {"parallel.rank_order", std::string(rank_order_names[static_cast<size_t>(layout.rank_order)])},
          {"parallel.zero", fmt::format("{}", layout.zero)},
          {"batch.micro", fmt::format("{}", layout.micro)},
          {"memory.recompute", recompute_word(layout)},
          {"memory.offload_activations", offload_word(layout)}};
}

}  // namespace gptrain
