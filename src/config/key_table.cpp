#include "config/key_table.h"

#include <fmt/format.h>
#include <variant>
#include <vector>

#include "base/json.h"
#include "config/fields.h"

namespace gptrain::inline config {
namespace {

std::string code(const std::string& text) { return "`" + text + "`"; }

std::string row(const std::string& path, const std::string& default_value, const std::string& meaning) {
  return fmt::format("| {} | {} | {} |\n", code(path), default_value, meaning);
}

// A field's meaning. The description may end with "; default: " and the rule by which the value is derived.
struct Meaning {
  std::string text;
  std::string derived_default;
};

Meaning split(const std::string& description) {
  const std::string mark = "; default: ";
  const size_t at = description.find(mark);
  if (at == std::string::npos) return {description, "-"};
  return {description.substr(0, at), description.substr(at + mark.size())};
}

std::string default_of(const Field& field, const Meaning& meaning) {
  if (field.presence == Presence::required) return "required";
  // A shorthand has no value of its own, and no preset is set by default.
  if (field.presence == Presence::derived || !field.get || field.path == "model.preset") return meaning.derived_default;
  return code(json_text(field.get(RunConfig{})));
}

std::string field_row(const Field& field) {
  const Meaning meaning = split(field.description);
  std::string text = meaning.text;
  const WordRule* words = std::get_if<WordRule>(&field.rule);
  if (words != nullptr && field.path != "model.preset") {  // presets are listed on their own
    std::vector<std::string> choices;
    for (const std::string& word : words->words) choices.push_back(code(word));
    text = join(choices, ", ") + ": " + text;
  }
  if (field.dependency) text += " (only if " + field.dependency->condition + ")";
  return row(field.path, default_of(field, meaning), text);
}

}  // namespace

std::string config_key_table() {
  std::string table = "| key | default | meaning |\n|---|---|---|\n";
  for (const Field& field : fields()) {
    table += field_row(field);
    if (const auto* object = std::get_if<ObjectRule>(&field.rule)) {
      for (const ObjectKey& key : object->keys())
        table += row(field.path + "." + key.key, key.required ? "required" : code(key.example), key.description);
    }
    if (field.path != "data.train") continue;  // data.validation has the keys path and weight only
    for (const SourceKey& key : source_keys()) {
      const std::string usual = key.counts_epochs ? "-" : code(key.example);
      table += row(field.path + "[]." + key.key, key.required ? "required" : usual, key.description);
    }
  }
  return table;
}

}  // namespace gptrain::config
