#include <string>
#include <variant>
#include <vector>

#include "base/attention_pattern.h"
#include "base/json.h"
#include "config/fields.h"
#include "config/load.h"

namespace gptrain::inline config {
namespace {

Json value_schema(const ValueRule& rule);

Json rule_schema(const IntegerRule& rule) {
  return {{"type", "integer"}, {"minimum", rule.min}, {"maximum", rule.max}};
}

Json rule_schema(const NumberRule& rule) {
  const Json bounded = {{"type", "number"},
                        {rule.min_excluded ? "exclusiveMinimum" : "minimum", rule.min},
                        {rule.max_excluded ? "exclusiveMaximum" : "maximum", rule.max}};
  if (!rule.may_be_zero) return bounded;
  return {{"anyOf", Json::array({bounded, {{"enum", Json::array({0})}}})}};
}

Json rule_schema(const BooleanRule&) { return {{"type", "boolean"}}; }

Json rule_schema(const TextRule& rule) { return {{"type", "string"}, {"minLength", rule.may_be_empty ? 0 : 1}}; }

Json rule_schema(const WordRule& rule) { return {{"enum", rule.words}}; }

Json rule_schema(const IntegerOrWordRule& rule) {
  return {{"anyOf", Json::array({rule_schema(rule.integer), {{"enum", rule.words}}})}};
}

Json rule_schema(const NumberPairRule& rule) {
  return {{"type", "array"}, {"items", rule_schema(rule.each)}, {"minItems", 2}, {"maxItems", 2}};
}

Json rule_schema(const IntegerListRule& rule) { return {{"type", "array"}, {"items", rule_schema(rule.each)}}; }

Json rule_schema(const NumberListRule& rule) { return {{"type", "array"}, {"items", rule_schema(rule.each)}}; }

Json rule_schema(const SourcesRule& rule) {
  Json properties = Json::object();
  Json required = Json::array();
  for (const SourceKey& key : source_keys()) {
    if (key.counts_epochs && !rule.counts_epochs) continue;
    properties[key.key] = value_schema(key.rule);
    properties[key.key]["description"] = key.description;
    if (key.required) required.push_back(key.key);
    if (!key.required && !key.counts_epochs) properties[key.key]["default"] = Json::parse(key.example);
  }
  return {{"type", "array"},
          {"minItems", rule.may_be_empty ? 0 : 1},
          {"items",
           {{"type", "object"}, {"properties", properties}, {"required", required}, {"additionalProperties", false}}}};
}

Json rule_schema(const PhasesRule&) {
  const Json properties = {{"until_step", {{"type", "integer"}, {"minimum", 1}}},
                           {"weights", {{"type", "array"}, {"items", {{"type", "number"}, {"minimum", 0}}}}}};
  return {{"type", "array"},
          {"items",
           {{"type", "object"},
            {"properties", properties},
            {"required", Json::array({"until_step", "weights"})},
            {"additionalProperties", false}}}};
}

Json rule_schema(const SampleRangesRule&) {
  const Json properties = {{"first", {{"type", "integer"}, {"minimum", 0}}},
                           {"count", {{"type", "integer"}, {"minimum", 1}}}};
  return {{"type", "array"},
          {"items",
           {{"type", "object"},
            {"properties", properties},
            {"required", Json::array({"first", "count"})},
            {"additionalProperties", false}}}};
}

Json rule_schema(const WordListRule& rule) {
  return {{"type", "array"},
          {"items", rule_schema(rule.each)},
          {"minItems", rule.may_be_empty ? 0 : 1},
          {"uniqueItems", !rule.may_repeat}};
}

Json rule_schema(const PatternListRule&) {
  return {{"type", "array"}, {"items", {{"type", "string"}, {"pattern", attention_pattern_regex}}}, {"minItems", 1}};
}

Json rule_schema(const ObjectRule& rule) {
  Json properties = Json::object();
  Json required = Json::array();
  for (const ObjectKey& key : rule.keys()) {
    properties[key.key] = value_schema(key.rule);
    properties[key.key]["description"] = key.description;
    if (key.required) {
      required.push_back(key.key);
    } else {
      properties[key.key]["default"] = Json::parse(key.example);
    }
  }
  return {{"type", "object"},
          {"properties", properties},
          {"anyOf", Json::array({{{"maxProperties", 0}}, {{"required", required}}})},
          {"additionalProperties", false}};
}

Json value_schema(const ValueRule& rule) {
  return std::visit([](const auto& alternative) { return rule_schema(alternative); }, rule);
}

Json field_schema(const Field& field) {
  Json schema = value_schema(field.rule);
  std::string description = field.description;
  if (field.dependency) description += "; only with: " + field.dependency->condition;
  schema["description"] = description;
  const bool has_default = field.presence == Presence::optional && field.get && field.path != "model.preset";
  if (has_default) {
    schema["default"] = field.get(RunConfig{});
  } else {
    schema["examples"] = Json::array({Json::parse(field.example)});
  }
  return schema;
}

Json section_schema(const std::string& section) {
  Json properties = Json::object();
  Json required = Json::array();
  for (const Field& field : fields()) {
    if (field.section() != section) continue;
    properties[field.key()] = field_schema(field);
    if (field.presence == Presence::required && !field.dependency) required.push_back(field.key());
  }
  Json schema = {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
  const auto one_of_sets = [](const Json& first, const Json& second) {
    return Json::array({{{"required", first}}, {{"required", second}}});
  };
  if (section == "model") {
    schema["anyOf"] = one_of_sets(Json::array({"preset"}), required);
  } else if (section == "batch") {
    schema["anyOf"] = one_of_sets(Json::array({"global"}), Json::array({"micro", "accumulation"}));
  } else if (!required.empty()) {
    schema["required"] = required;
  }
  return schema;
}

}  // namespace

std::string config_schema() {
  Json properties = Json::object();
  Json required = Json::array();
  for (const std::string& section : section_names()) {
    properties[section] = section_schema(section);
    if (properties[section].contains("required") || properties[section].contains("anyOf")) required.push_back(section);
  }
  const Json schema = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "gptrain run config"},
      {"description", "JSON with // and /* */ comments. `gptrain config check` also checks the rules between keys."},
      {"type", "object"},
      {"properties", properties},
      {"required", required},
      {"additionalProperties", false},
  };
  return json_text(schema, 2) + "\n";
}

}  // namespace gptrain::config
