#include "config/load.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/units.h"
#include "config/aliases.h"
#include "config/checks.h"
#include "config/faults.h"
#include "config/fields.h"

namespace gptrain::inline config {
namespace {

constexpr size_t longest_misspelling = 100;

// Returns true if `word` may be the beginning of `other`, or a misspelling of it: a fifth of the letters are wrong, two
// change places, or one of few is missing.
bool may_mean(std::string_view word, std::string_view other) {
  const auto letters = static_cast<int64_t>(word.size());
  const int64_t wrong = word_distance(word, other);
  if (letters < 2 || wrong == 0) return letters > 1;
  if (letters < 5) return wrong == 1 && other.size() > word.size() && letters > 2;
  const bool is_shuffled = std::is_permutation(word.begin(), word.end(), other.begin(), other.end());
  return wrong <= std::max<int64_t>(is_shuffled ? 2 : 1, letters / 5);
}

// Returns the field that "section.key" probably means: another trainer's name for it, else the most similar path. A
// right key in the wrong section is nearer than a misspelt key. Empty if none is near.
std::string nearest_path(const std::string& section, const std::string& key) {
  if (key.size() > longest_misspelling) return "";
  const std::string last = key.substr(key.rfind('.') + 1);  // last component of a path deeper than ours
  if (const std::string meant = key_meant(section, last); !meant.empty()) return meant;
  const auto& table = fields();
  const bool is_ours = std::any_of(table.begin(), table.end(), [&](const Field& field) { return field.key() == last; });
  const std::string word = is_ours ? last : key.substr(0, key.find_first_of(".["));
  const auto distance = [&](const Field& field) {
    return 2 * word_distance(word, field.key()) + (section == field.section() ? 0 : 1);
  };
  const auto nearest = std::min_element(table.begin(), table.end(),
                                        [&](const Field& a, const Field& b) { return distance(a) < distance(b); });
  return may_mean(word, nearest->key()) ? nearest->path : "";
}

// Adds the fault of an unknown key. `section`: that of the key; may be empty.
void add_unknown_key(const std::string& path, const std::string& section, const std::string& key, const Json& value,
                     Faults& faults) {
  if (faults.is_full()) return faults.add(path, "", "", "");
  const std::string last = key.substr(key.rfind('.') + 1);
  const bool is_short = key.size() <= longest_misspelling;
  const bool has_other_name = is_short && !key_meant(section, last).empty();
  if (const std::string why = is_short && !has_other_name ? key_absent(section, last) : ""; !why.empty())
    return faults.add(path, show_value(value), "unknown key; " + why, "");
  const std::string nearest = nearest_path(section, key);
  faults.add(
      path, show_value(value),
      nearest.empty() ? "unknown key, and gptrain has none like it (`gptrain config keys` lists all)" : "unknown key",
      nearest);
}

void add_unknown_section(const std::string& name, const Json& value, Faults& faults) {
  if (faults.is_full()) return faults.add(name, "", "", "");
  if (value.is_object()) {
    std::string meant = section_meant(name);
    const std::string nearest = nearest_word(name, section_names());
    if (meant.empty() && name.size() <= longest_misspelling && may_mean(name, nearest)) meant = nearest;
    faults.add(name, show_value(value),
               meant.empty() ? "unknown section, and gptrain has none like it (`gptrain config keys` lists all)"
                             : "unknown section",
               meant);
  } else {
    add_unknown_key(name, "", name, value, faults);
  }
}

// Applies the overrides, in order, to the file's document.
class Overrides {
 public:
  Overrides(Json& document, Faults& faults) : document_(document), faults_(faults) {}

  void apply(const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return faults_.add("--set " + text, "", "must have the form key.path=value", "--set run.steps=1000");
    }
    const std::string path = text.substr(0, equals);
    const std::string word = text.substr(equals + 1);
    JsonText parsed = read_json(word);
    Json value = parsed.syntax_error.empty() ? std::move(parsed.document) : Json(word);
    for (const DuplicateKey& duplicate : parsed.duplicates) {
      faults_.add(path + duplicate.path, duplicate.value, "is given twice", "leaving one of them out");
    }
    set(path, std::move(value));
  }

 private:
  void set(const std::string& path, Json value) {
    const size_t bracket = path.find('[');
    if (bracket != std::string::npos) {
      if (const Field* field = find_field(path.substr(0, bracket)))
        return set_element(*field, path, path.substr(bracket), std::move(value));
    }
    const Field* field = find_field(path);
    if (field != nullptr) {
      if (!document_.contains(field->section())) document_[field->section()] = Json::object();
      return put(document_[field->section()], field->key(), std::move(value));
    }
    const size_t last = path.rfind('.');
    if (last != std::string::npos) {
      const Field* const object = find_field(path.substr(0, last));
      if (object != nullptr && std::holds_alternative<ObjectRule>(object->rule))
        return set_member(*object, path.substr(last + 1), std::move(value));
    }
    const std::vector<std::string> sections = section_names();
    if (value.is_null() && std::find(sections.begin(), sections.end(), path) != sections.end()) {
      document_.erase(path);
      return;
    }
    if (std::find(sections.begin(), sections.end(), path) != sections.end()) return refuse_section(path, value);
    const size_t dot = path.find('.');
    const std::string section = dot == std::string::npos ? "" : path.substr(0, dot);
    add_unknown_key(path, section, dot == std::string::npos ? path : path.substr(dot + 1), value, faults_);
  }

  void refuse_section(const std::string& name, const Json& value) {
    const auto first = std::find_if(fields().begin(), fields().end(), [&](const Field& field) {
      return field.section() == name && !field.example.empty();
    });
    faults_.add(name, show_value(value), "is a section, whose keys are set one by one",
                first == fields().end() ? "" : fmt::format("--set {}={}", first->path, first->example));
  }

  // Sets a key of an object field, which is created if absent.
  void set_member(const Field& field, const std::string& key, Json value) {
    Json& section = document_[field.section()];
    if (section.is_null()) section = Json::object();
    if (!section.is_object()) return;  // reported when the section is read
    if (!section.contains(field.key())) section[field.key()] = Json::object();
    put(section[field.key()], key, std::move(value));
  }

  // Sets an element of a list field. `rest` is "[N]", or "[N].member" for a member of the element.
  void set_element(const Field& field, const std::string& path, std::string_view rest, Json value) {
    size_t index = 0;
    const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), index);
    rest.remove_prefix(end - rest.data());
    const bool readable = error == std::errc{} && (rest == "]" || (rest.starts_with("].") && rest.size() > 2));
    const Json::json_pointer pointer = Json::json_pointer() / field.section() / field.key();
    const bool is_list = document_.contains(pointer) && document_[pointer].is_array();
    const size_t count = is_list ? document_[pointer].size() : 0;
    if (!readable || index >= count) {
      return faults_.add(path, show_value(value),
                         fmt::format("names no element of {}; the config's list has {}", field.path,
                                     format_counted(static_cast<int64_t>(count), "element")),
                         fmt::format("the whole value: --set '{}={}'", field.path, field.example));
    }
    Json& element = document_[pointer][index];
    if (rest != "]") return put(element, std::string(rest.substr(2)), std::move(value));
    if (value.is_null()) {
      document_[pointer].erase(index);
    } else {
      element = std::move(value);
    }
  }

  // Sets or removes a member. Does nothing if `object` is not an object, which is reported when it is read.
  static void put(Json& object, const std::string& key, Json value) {
    if (!object.is_object()) return;
    if (value.is_null()) {
      object.erase(key);
    } else {
      object[key] = std::move(value);
    }
  }

  Json& document_;
  Faults& faults_;
};

// Checks each key alone and returns the paths of the keys that are given and known.
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
        add_unknown_key(path, name, key, value, faults);
        continue;
      }
      given.insert(path);
      check_value(field->rule, path, value, field->example, faults);
    }
  }
  return given;
}

// Returns a line to print before the faults if a run was shortened by run.steps, so that the schedule, or a step at
// which something begins, does not fit. Otherwise returns none.
Lines shorter_run_hint(std::span<const std::string> overrides, const RunConfig& config, const Faults& faults) {
  const bool of_length =
      faults.lines().text().find(" run.steps ") != std::string::npos;  // a rule names the run's length
  const bool overridden = std::any_of(overrides.begin(), overrides.end(),
                                      [](const std::string& text) { return text.starts_with("run.steps="); });
  if (!of_length || !overridden) return {};
  return Lines(
      "to try a run's first {0} steps, leave run.steps as it is and give train --steps {0}, which keeps the schedule; "
      "the faults:\n",
      config.run.steps);
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  // Reads up to one byte beyond the limit: a pipe has no size to check beforehand.
  std::string text(static_cast<size_t>(max_config_bytes) + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  const int why = errno;
  text.resize(stream.gcount());
  if (!stream.eof() && static_cast<int64_t>(text.size()) <= max_config_bytes)
    throw Error(ExitCode::usage, "config file {}: cannot be read: {}", file.string(), std::strerror(why));
  return text;
}

}  // namespace

RunConfig parse_config(std::string_view text, std::span<const std::string> overrides, std::string_view origin,
                       int64_t world_size) {
  if (static_cast<int64_t>(text.size()) > max_config_bytes)
    throw Error(ExitCode::usage, "{}: is larger than {} bytes, the limit of a config", origin, max_config_bytes);
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
  Overrides settings(document, faults);
  for (const std::string& override_text : overrides) settings.apply(override_text);
  const std::set<std::string> given = check_keys(document, faults);

  RunConfig config;
  for (const Field& field : fields()) {
    if (!given.contains(field.path) || faults.concern(field.path)) continue;
    field.set(config, document[field.section()][field.key()]);
  }
  resolve(config, given, world_size, faults);
  if (!faults.empty())
    throw Error(ExitCode::usage, "{}{}", shorter_run_hint(overrides, config, faults), faults.lines());
  return config;
}

RunConfig with_values(RunConfig config, std::span<const std::string> settings) {
  Json document = Json::object();
  Faults faults;
  Overrides overrides(document, faults);
  for (const std::string& setting : settings) overrides.apply(setting);
  const std::set<std::string> given = check_keys(document, faults);
  if (!faults.empty()) throw Error(ExitCode::usage, faults.lines());
  for (const Field& field : fields())
    if (given.contains(field.path)) field.set(config, document[field.section()][field.key()]);
  return config;
}

std::optional<RunConfig> with_derived_values(RunConfig config, int64_t world_size) {
  std::set<std::string> given;
  for (const Field& field : fields())
    if (is_shown(field, config)) given.insert(field.path);
  Faults faults;
  resolve(config, given, world_size, faults);
  return faults.empty() ? std::optional(std::move(config)) : std::nullopt;
}

RunConfig load_config(const std::filesystem::path& file, std::span<const std::string> overrides, int64_t world_size) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    throw Error(ExitCode::usage, "config file {}: not found or not accessible{} (give the path of a JSON file)",
                file.string(), status.type() == std::filesystem::file_type::none ? ": " + error.message() : "");
  }
  if (std::filesystem::is_directory(status)) {
    throw Error(ExitCode::usage, "config file {}: is a folder (give the path of a JSON file)", file.string());
  }
  if (std::filesystem::is_regular_file(status))
    return parse_config(read_text(file), overrides, file.string(), world_size);
  // A pipe can be read once, but a command may load its config for several numbers of ranks.
  static std::map<std::filesystem::path, std::string> texts_of_pipes;
  static std::mutex of_texts;
  const std::lock_guard lock(of_texts);
  if (!texts_of_pipes.contains(file)) texts_of_pipes[file] = read_text(file);
  return parse_config(texts_of_pipes[file], overrides, file.string(), world_size);
}

}  // namespace gptrain::config
