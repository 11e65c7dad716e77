#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/field_builder.h"
#include "config/fields.h"
#include "config/load.h"

namespace gptrain::inline config {
namespace {

// Returns the part of a field's value that must not change on resume: the value itself, or for data sources their
// number.
Json resume_state(const Field& field, const RunConfig& config) {
  Json value = field.get(config);
  return std::holds_alternative<SourcesRule>(field.rule) ? Json(value.size()) : value;
}

}  // namespace

bool is_shown(const Field& field, const RunConfig& config) {
  if (!field.get || !field.used(config)) return false;
  if (field.path == "model.preset") return !config.model.preset.empty();
  return field.path != "batch.accumulation" || !config.parallel.elastic;
}

std::string show_config(const RunConfig& config, ConfigText text) {
  std::vector<std::string> sections;
  for (const std::string& section : section_names()) {
    std::vector<std::string> lines;
    for (const Field& field : fields()) {
      if (field.section() != section || !is_shown(field, config)) continue;
      if (field.path == "batch.accumulation" && text == ConfigText::for_any_ranks) continue;
      lines.push_back(fmt::format("    \"{}\": {}", field.key(), json_text(field.get(config))));
    }
    sections.push_back(fmt::format("  \"{}\": {{\n{}\n  }}", section, join(lines, ",\n")));
  }
  return fmt::format("{{\n{}\n}}\n", join(sections, ",\n"));
}

std::string show_model(const RunConfig& config) {
  Json section = Json::object();
  for (const Field& field : fields()) {
    if (field.section() != "model" || !field.get || !field.used(config) || field.path == "model.preset") continue;
    section[field.key()] = field.get(config);
  }
  return json_text(Json{{"model", std::move(section)}}, 2) + '\n';
}

std::string list_config(const RunConfig& config) {
  std::string lines;
  for (const Field& field : fields()) {
    if (field.get && field.used(config)) lines += fmt::format("{} = {}\n", field.path, json_text(field.get(config)));
  }
  return lines;
}

ModelChanges model_changes(const ConfigChange& change) {
  const auto& [saved, asked] = change;
  // Keys that act in training only, and keys that change how weights of the same shapes are used.
  const std::vector<std::string> of_training = {"model.preset", "model.residual_dropout", "model.attention_dropout",
                                                "model.init_std", "model.z_loss"};
  std::vector<std::string> of_use = {
      "model.attention_pattern",   "model.attention_scale",      "model.attention_softcap",
      "model.logit_softcap",       "model.positions_pattern",    "model.rope_theta",
      "model.rope_theta_pattern",  "model.rope_scaling",         "model.rope_scaling_pattern",
      "model.rope_factor",         "model.rope_low_freq_factor", "model.rope_high_freq_factor",
      "model.rope_original_length"};
  if (asked.model.positions == PositionKind::rope) of_use.emplace_back("model.sequence_length");
  if (asked.model.vocab_size > saved.model.vocab_size) of_use.emplace_back("model.vocab_size");
  ModelChanges changes;
  std::vector<std::string> refused;
  for (const Field& field : fields()) {
    if (field.section() != "model" || !field.get || field.get(saved) == field.get(asked)) continue;
    const auto is_in = [&](const std::vector<std::string>& paths) {
      return std::find(paths.begin(), paths.end(), field.path) != paths.end();
    };
    if (is_in(of_training)) continue;
    (is_in(of_use) ? changes.accepted : refused)
        .push_back(fmt::format("{}: {} in the checkpoint, {} in the config", field.path, json_text(field.get(saved)),
                               json_text(field.get(asked))));
  }
  changes.refused = Lines::join(refused);
  return changes;
}

Lines resume_conflicts(const ConfigChange& change) {
  const auto& [saved, asked] = change;
  std::vector<std::string> lines;
  for (const Field& field : fields()) {
    if (field.may_change || !field.get) continue;
    const Json before = resume_state(field, saved);
    const Json now = resume_state(field, asked);
    if (before == now) continue;
    const bool sources = std::holds_alternative<SourcesRule>(field.rule);
    lines.push_back(fmt::format("{}{}: {} in the checkpoint, {} in the config", field.path,
                                sources ? " (number of sources)" : "", json_text(before), json_text(now)));
  }
  return Lines::join(lines);
}

std::vector<std::string> resume_changes(const ConfigChange& change) {
  const auto& [saved, asked] = change;
  std::vector<std::string> lines;
  for (const Field& field : fields()) {
    if (!field.get) continue;
    const Json before = field.get(saved), now = field.get(asked);
    if (before != now) lines.push_back(fmt::format("{}: {} -> {}", field.path, json_text(before), json_text(now)));
  }
  return lines;
}

bool has_same_mixture(const ConfigChange& change) {
  const auto& [saved, asked] = change;
  const auto mixture = [](const StepConfig& config) {
    Json sources = value_json(config.data.train);
    for (Json& source : sources) {
      source.erase("path");
      source.erase("dtype");
    }
    return Json{sources, config.data.temperature, value_json(config.data.phases)};
  };
  const bool same_steps = saved.batch.global == asked.batch.global || asked.data.phases.empty();
  return same_steps && mixture(saved) == mixture(asked);
}

}  // namespace gptrain::config
