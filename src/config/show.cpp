#include <fmt/format.h>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/fields.h"
#include "config/load.h"

namespace gptrain {
namespace {

// What of a field may not change on resume: its value, or for data sources (whose paths may) their weights, with what
// else a source has.
Json resume_state(const Field& field, const RunConfig& config) {
  Json value = field.get(config);
  if (!std::holds_alternative<SourcesRule>(field.rule)) return value;
  Json weights = Json::array();
  for (Json& source : value) {
    source.erase("path");
    weights.push_back(source.size() == 1 && source.contains("weight") ? source["weight"] : source);
  }
  return weights;
}

}  // namespace

std::string show_config(const RunConfig& config, ConfigText text) {
  std::vector<std::string> sections;
  for (const std::string& section : section_names()) {
    std::vector<std::string> lines;
    for (const Field& field : fields()) {
      if (field.section() != section || !field.get || !field.used(config)) continue;
      const Json value = field.get(config);
      if (field.path == "model.preset" && config.model.preset.empty()) continue;
      if (field.path == "batch.accumulation" && text == ConfigText::for_any_ranks) continue;
      lines.push_back(fmt::format("    \"{}\": {}", field.key(), json_text(value)));
    }
    sections.push_back(fmt::format("  \"{}\": {{\n{}\n  }}", section, join(lines, ",\n")));
  }
  return fmt::format("{{\n{}\n}}\n", join(sections, ",\n"));
}

std::string list_config(const RunConfig& config) {
  std::string lines;
  for (const Field& field : fields()) {
    if (field.get && field.used(config)) lines += fmt::format("{} = {}\n", field.path, json_text(field.get(config)));
  }
  return lines;
}

std::string resume_conflicts(const RunConfig& saved, const RunConfig& asked) {
  std::vector<std::string> lines;
  for (const Field& field : fields()) {
    if (field.may_change || !field.get) continue;
    const Json before = resume_state(field, saved);
    const Json now = resume_state(field, asked);
    if (before == now) continue;
    const bool sources = std::holds_alternative<SourcesRule>(field.rule);
    lines.push_back(fmt::format("{}{}: {} in the checkpoint, {} in the config", field.path, sources ? "[].weight" : "",
                                json_text(before), json_text(now)));
  }
  return join(lines, "\n");
}

}  // namespace gptrain
