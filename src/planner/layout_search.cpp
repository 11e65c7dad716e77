#include "planner/layout_search.h"

#include <array>
#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <utility>

#include "config/run_config.h"

namespace gptrain::inline planner {
namespace {

std::string recompute_word(const RunLayout& layout) {
  switch (layout.recompute) {
    case RecomputeKind::none:
      return "none";
    case RecomputeKind::selective:
      return "selective";
    case RecomputeKind::ffn:
      return "ffn";
    case RecomputeKind::block:
      return "block";
    case RecomputeKind::every_nth:
      return fmt::format("every_nth {}", layout.recompute_interval);
    case RecomputeKind::optimal:
      return "optimal";
  }
  return "";
}

std::string schedule_word(const RunLayout& layout) {
  if (layout.pipeline == 1) return "-";
  const std::string_view name = pipeline_order_names[layout.schedule];
  if (layout.schedule != PipelineOrder::interleaved) return std::string(name);
  return fmt::format("{} of {} chunks", name, layout.virtual_stages);
}

std::string context_word(const RunLayout& layout) {
  if (layout.context == 1) return "1";
  return fmt::format("{} {}", layout.context, context_method_names[layout.context_method]);
}

std::string expert_word(const RunLayout& layout) {
  if (layout.expert_tensor == 1) return std::to_string(layout.expert);
  return fmt::format("{} x {} tensor", layout.expert, layout.expert_tensor);
}

using ValueText = std::string (*)(const RunLayout& layout);
constexpr std::array<std::pair<std::string_view, ValueText>, 12> value_texts = {{
    {"parallel.tensor", [](const RunLayout& layout) { return std::to_string(layout.tensor); }},
    {"parallel.context", context_word},
    {"parallel.expert", expert_word},
    {"parallel.sequence", [](const RunLayout& layout) -> std::string { return layout.sequence ? "true" : "false"; }},
    {"parallel.pipeline", [](const RunLayout& layout) { return std::to_string(layout.pipeline); }},
    {schedule_key, schedule_word},
    {"parallel.layers_per_stage",
     [](const RunLayout& layout) -> std::string { return layout.is_balanced ? "balanced" : "default"; }},
    {rank_order_key, [](const RunLayout& layout) { return std::string(rank_order_names[layout.rank_order]); }},
    {"parallel.zero", [](const RunLayout& layout) { return std::to_string(layout.zero); }},
    {"batch.micro", [](const RunLayout& layout) { return std::to_string(layout.micro); }},
    {recompute_key, recompute_word},
    {offload_key, [](const RunLayout& layout) { return offload_name(layout.offload); }},
}};

}  // namespace

std::vector<std::pair<std::string, std::string>> layout_keys(const RunLayout& layout) {
  std::vector<std::pair<std::string, std::string>> keys;
  for (const auto& [key, text] : value_texts) keys.emplace_back(key, text(layout));
  return keys;
}

std::string value_text(const RunLayout& layout, std::string_view key) {
  for (const auto& [path, text] : value_texts)
    if (path == key) return text(layout);
  throw std::logic_error("not a key of layouts");
}

}  // namespace gptrain::planner
