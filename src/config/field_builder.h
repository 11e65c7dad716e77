// Builders for the rows of the table of fields.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/attention_pattern.h"
#include "base/enum_array.h"
#include "base/kinds.h"
#include "config/field.h"

namespace gptrain::inline config {

constexpr uint64_t max_steps = 1'000'000'000'000;  // largest value of keys that count steps

template <typename Value>
Json value_json(const Value& value) {
  return value;
}

inline Json value_json(const std::vector<DataSource>& sources) {
  Json array = Json::array();
  for (const DataSource& source : sources) {
    Json object = {{"path", source.path}};
    object.update(source.epochs > 0 ? Json{{"epochs", source.epochs}} : Json{{"weight", source.weight}});
    if (source.max_epochs > 0) object["max_epochs"] = source.max_epochs;
    if (source.tokens > 0) object["tokens"] = source.tokens;
    if (source.dtype) object["dtype"] = *source.dtype == DType::u16 ? "u16" : "u32";
    array.push_back(std::move(object));
  }
  return array;
}

inline Json value_json(const std::vector<DataPhase>& phases) {
  Json array = Json::array();
  for (const DataPhase& phase : phases) array.push_back({{"until_step", phase.until_step}, {"weights", phase.weights}});
  return array;
}

inline Json value_json(const std::vector<SampleRange>& ranges) {
  Json array = Json::array();
  for (const SampleRange& range : ranges) array.push_back({{"first", range.first}, {"count", range.count}});
  return array;
}

inline Json value_json(const RollbackConfig& rollback) {
  if (!rollback.is_on()) return Json::object();
  return {{"spike", rollback.spike},
          {"window", rollback.window},
          {"skip_samples", rollback.skip_samples},
          {"steps", rollback.steps},
          {"limit", rollback.limit}};
}

inline Json value_json(const ProjectionConfig& projection) {
  if (!projection.is_on()) return Json::object();
  Json sites = Json::array();
  for (const LinearSite site : projection.sites) sites.push_back(linear_site_names[site]);
  return {{"kind", projection_names[projection.kind]}, {"share", projection.share}, {"sites", std::move(sites)}};
}

inline Json value_json(const LocalStepsConfig& local) {
  if (local.islands == 1 && local.every == 1) return Json::object();
  Json json{{"islands", local.islands},
            {"every", local.every},
            {"start_step", local.start_step},
            {"outer", outer_step_names[static_cast<size_t>(local.outer)]}};
  if (local.outer != OuterStep::nesterov) return json;
  json["outer_lr"] = local.outer_lr;
  json["outer_momentum"] = local.outer_momentum;
  return json;
}

inline Json value_json(const CompressionConfig& compression) {
  if (!compression.is_on()) return Json::object();
  Json json{{"kind", gradient_codec_names[compression.kind]},
            {"error", compression.error},
            {"start_step", compression.start_step},
            {"min_elements", compression.min_elements}};
  if (compression.rank > 0) json["rank"] = compression.rank;
  if (compression.share > 0) json["share"] = compression.share;
  if (compression.alternate) json["alternate"] = true;
  if (compression.is_between_nodes()) json["between"] = compressed_sums_names[static_cast<size_t>(compression.between)];
  return json;
}

inline Json value_json(const std::vector<AttentionPattern>& patterns) {
  Json array = Json::array();
  for (const AttentionPattern& pattern : patterns) array.push_back(attention_pattern_word(pattern));
  return array;
}

// The names of an enum's values in an array.
template <typename Enum, size_t n>
Json names_json(const std::vector<Enum>& values, const EnumArray<Enum, std::string_view, n>& names) {
  Json array = Json::array();
  for (const Enum value : values) array.push_back(names[value]);
  return array;
}

inline Json value_json(const std::vector<LayerPositions>& values) { return names_json(values, layer_positions_names); }
inline Json value_json(const std::vector<RopeScaling>& values) { return names_json(values, rope_scaling_names); }

Json value_json(const MoeConfig& moe);
void set_value(const Json& json, MoeConfig& moe);

template <typename Value>
void set_value(const Json& json, Value& value) {
  value = json.get<Value>();
}

inline void set_value(const Json& json, std::vector<AttentionPattern>& patterns) {
  patterns.clear();
  for (const Json& word : json) patterns.push_back(parse_attention_pattern(word.get<std::string>()).value());
}

inline void set_value(const Json& json, std::vector<DataSource>& sources) {
  sources.clear();
  for (const Json& source : json) {
    DataSource& read = sources.emplace_back();
    read.path = source.at("path").get<std::string>();
    read.weight = source.value("weight", read.weight);
    read.epochs = source.value("epochs", read.epochs);
    read.max_epochs = source.value("max_epochs", read.max_epochs);
    read.tokens = source.value("tokens", read.tokens);
    const std::string dtype = source.value("dtype", "auto");
    if (dtype != "auto") read.dtype = dtype == "u16" ? DType::u16 : DType::i32;
  }
}

inline void set_value(const Json& json, std::vector<DataPhase>& phases) {
  phases.clear();
  for (const Json& phase : json)
    phases.push_back({phase.at("until_step").get<int64_t>(), phase.at("weights").get<std::vector<double>>()});
}

inline void set_value(const Json& json, std::vector<SampleRange>& ranges) {
  ranges.clear();
  for (const Json& range : json) ranges.push_back({range.at("first").get<int64_t>(), range.at("count").get<int64_t>()});
}

inline void set_value(const Json& json, RollbackConfig& rollback) {
  const RollbackConfig usual;
  rollback = {json.value("spike", usual.spike), json.value("window", usual.window),
              json.value("skip_samples", usual.skip_samples), json.value("steps", usual.steps),
              json.value("limit", usual.limit)};
}

template <typename Enum, size_t count>
Enum named(const std::array<std::string_view, count>& names, const std::string& name) {
  return static_cast<Enum>(std::find(names.begin(), names.end(), name) - names.begin());
}

inline void set_value(const Json& json, CompressionConfig& compression) {
  compression = {};
  if (json.empty()) return;
  compression.kind = named<GradientCodec>(gradient_codec_names, json.at("kind").get<std::string>());
  compression.rank = json.value("rank", compression.facts().rank);
  compression.share = json.value("share", compression.facts().share);
  compression.error = json.value("error", compression.error);
  compression.alternate = json.value("alternate", compression.alternate);
  compression.between = named<CompressedSums>(compressed_sums_names, json.value("between", "all"));
  compression.start_step = json.value("start_step", compression.start_step);
  compression.min_elements = json.value("min_elements", compression.min_elements);
}

inline void set_value(const Json& json, LocalStepsConfig& local) {
  local = {};
  if (json.empty()) return;
  local.islands = json.at("islands").get<int64_t>();
  local.every = json.at("every").get<int64_t>();
  local.start_step = json.value("start_step", local.start_step);
  local.outer = named<OuterStep>(outer_step_names, json.value("outer", "average"));
  const bool nesterov = local.outer == OuterStep::nesterov;
  local.outer_lr = json.value("outer_lr", nesterov ? 0.7 : local.outer_lr);
  local.outer_momentum = json.value("outer_momentum", nesterov ? 0.9 : local.outer_momentum);
}

template <typename Enum, size_t n>
void set_names(const Json& json, const EnumArray<Enum, std::string_view, n>& names, std::vector<Enum>& values) {
  values.clear();
  for (const Json& name : json) values.push_back(named<Enum>(names, name.get<std::string>()));
}

inline void set_value(const Json& json, std::vector<LayerPositions>& values) {
  set_names(json, layer_positions_names, values);
}
inline void set_value(const Json& json, std::vector<RopeScaling>& values) {
  set_names(json, rope_scaling_names, values);
}

inline void set_value(const Json& json, ProjectionConfig& projection) {
  projection = {};
  if (json.empty()) return;
  projection.kind = named<ProjectionKind>(projection_names, json.at("kind").get<std::string>());
  projection.share = json.value("share", projection.share);
  const Json all = {"qkv", "ffn_in", "ffn_out"};
  for (const Json& site : json.value("sites", all))
    projection.sites.push_back(named<LinearSite>(linear_site_names, site.get<std::string>()));
}

// Builds a field step by step.
struct Builder : Field {
  Builder& required(std::string usual) {
    presence = Presence::required;
    example = std::move(usual);
    return *this;
  }
  Builder& derived(std::string usual) {
    presence = Presence::derived;
    example = std::move(usual);
    return *this;
  }
  Builder& usually(std::string usual) {
    example = std::move(usual);
    return *this;
  }
  Builder& only_with(Dependency other) {
    dependency = std::move(other);
    return *this;
  }
  Builder& changeable() {
    may_change = true;
    return *this;
  }
};

template <typename Owner, typename Section, typename Value>
Builder field(std::string path, Section Owner::*section, Value Section::*member, ValueRule rule,
              std::string description) {
  Builder builder;
  builder.path = std::move(path);
  builder.description = std::move(description);
  builder.rule = std::move(rule);
  builder.get = [=](const RunConfig& config) { return value_json(config.*section.*member); };
  builder.set = [=](RunConfig& config, const Json& json) { set_value(json, config.*section.*member); };
  return builder;
}

template <typename Enum>
using Words = std::vector<std::pair<std::string, Enum>>;

template <typename Section, typename Enum, typename Owner>
Builder words(std::string path, Section Owner::*section, Enum Section::*member, const Words<Enum>& choices,
              std::vector<RefusedWord> refused, std::string description) {
  WordRule rule{{}, std::move(refused)};
  for (const auto& choice : choices) {
    const bool is_refused = std::any_of(rule.refused.begin(), rule.refused.end(),
                                        [&](const RefusedWord& word) { return word.word == choice.first; });
    if (!is_refused) rule.words.push_back(choice.first);
  }
  Builder builder;
  builder.path = std::move(path);
  builder.description = std::move(description);
  builder.rule = std::move(rule);
  builder.get = [=](const RunConfig& config) -> Json {
    return std::find_if(choices.begin(), choices.end(),
                        [&](const auto& choice) { return choice.second == config.*section.*member; })
        ->first;
  };
  builder.set = [=](RunConfig& config, const Json& json) {
    config.*section.*member = std::find_if(choices.begin(), choices.end(), [&](const auto& choice) {
                                return choice.first == json.get_ref<const std::string&>();
                              })->second;
  };
  return builder;
}

// The names of an enum's values.
template <typename E, size_t N>
Words<E> named_words(const std::array<std::string_view, N>& names) {
  Words<E> words;
  for (size_t i = 0; i < N; ++i) words.emplace_back(std::string(names[i]), static_cast<E>(i));
  return words;
}

Builder moe_field();
void add_model_fields(std::vector<Field>& table);
void add_memory_fields(std::vector<Field>& table);
void add_optimizer_fields(std::vector<Field>& table);

}  // namespace gptrain::config
