#include "config/load.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "config/checks.h"
#include "config/faults.h"
#include "config/fields.h"

namespace gptrain {
namespace {

// The field that was meant by "section.key". A key that stands in the wrong section is nearer than a misspelt one.
std::string nearest_path(const std::string& section, const std::string& key) {
  const auto distance = [&](const Field& field) {
    return 2 * word_distance(key, field.key()) + (section == field.section() ? 0 : 1);
  };
  const auto& table = fields();
  return std::min_element(table.begin(), table.end(),
                          [&](const Field& a, const Field& b) { return distance(a) < distance(b); })
      ->path;
}

// `name` is no section of the config.
void add_unknown_section(const std::string& name, const Json& value, Faults& faults) {
  if (value.is_object()) {
    faults.add(name, show_value(value), "unknown section", nearest_word(name, section_names()));
  } else {
    faults.add(name, show_value(value), "unknown key", nearest_path("", name));
  }
}

void apply_override(const std::string& text, Json& document, Faults& faults) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return faults.add("--set " + text, "", "must have the form key.path=value", "--set run.steps=1000");
  }
  const std::string path = text.substr(0, equals);
  const std::string word = text.substr(equals + 1);
  JsonText parsed = read_json(word);
  Json value = parsed.syntax_error.empty() ? std::move(parsed.document) : Json(word);
  for (const DuplicateKey& duplicate : parsed.duplicates) {
    faults.add(path + duplicate.path, duplicate.value, "is given twice", "leaving one of them out");
  }
  if (find_field(path) == nullptr) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string section = path.substr(0, dot);
    const std::string key = dot == path.size() ? section : path.substr(dot + 1);
    return faults.add(path, show_value(value), "unknown key", nearest_path(dot == path.size() ? "" : section, key));
  }
  const size_t dot = path.find('.');
  Json& section = document[path.substr(0, dot)];
  if (section.is_null()) section = Json::object();
  // Any other section that is no object is reported as such when it is read.
  if (section.is_object()) section[path.substr(dot + 1)] = std::move(value);
}

// Checks each key by itself; the paths of those that are given and known.
std::set<std::string> check_keys(const Json& document, Faults& faults) {
  const std::vector<std::string> sections = section_names();
  std::set<std::string> given;
  for (const auto& [name, section] : document.items()) {
    if (std::find(sections.begin(), sections.end(), name) == sections.end()) {
      add_unknown_section(name, section, faults);
      continue;
    }
    if (!section.is_object()) {
      faults.add(name, show_value(section), "must be an object", "{}");
      continue;
    }
    for (const auto& [key, value] : section.items()) {
      const std::string path = name + "." + key;
      const Field* field = find_field(path);
      if (field == nullptr) {
        faults.add(path, show_value(value), "unknown key", nearest_path(name, key));
        continue;
      }
      given.insert(path);
      check_value(field->rule, path, value, field->example, faults);
    }
  }
  return given;
}

}  // namespace

RunConfig parse_config(std::string_view text, std::span<const std::string> overrides, std::string_view origin,
                       int64_t world_size) {
  JsonText parsed = read_json(text);
  if (!parsed.syntax_error.empty()) {
    throw Error(ExitCode::usage, "{}:{}", origin, parsed.syntax_error);
  }
  Json& document = parsed.document;
  if (!document.is_object()) {
    throw Error(ExitCode::usage, "{}: the config must be a JSON object with the sections {}", origin,
                join(section_names(), ", "));
  }
  Faults faults;
  for (const DuplicateKey& duplicate : parsed.duplicates) {
    faults.add(duplicate.path, duplicate.value, "is given twice", "leaving one of them out");
  }
  for (const std::string& override_text : overrides) apply_override(override_text, document, faults);
  const std::set<std::string> given = check_keys(document, faults);

  RunConfig config;
  for (const Field& field : fields()) {
    if (!given.contains(field.path) || faults.concern(field.path)) continue;
    field.set(config, document[field.section()][field.key()]);
  }
  settle(config, given, world_size, faults);
  if (!faults.empty()) throw Error(ExitCode::usage, faults.text());
  return config;
}

RunConfig load_config(const std::filesystem::path& file, std::span<const std::string> overrides, int64_t world_size) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    throw Error(ExitCode::usage, "config file {}: not found or not accessible (give the path of a JSON file)",
                file.string());
  }
  if (std::filesystem::is_directory(status)) {
    throw Error(ExitCode::usage, "config file {}: is a folder (give the path of a JSON file)", file.string());
  }
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream) throw Error(ExitCode::usage, "config file {}: cannot be read (check its permissions)", file.string());
  return parse_config(text, overrides, file.string(), world_size);
}

}  // namespace gptrain
