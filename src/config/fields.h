// The table of fields: every key of a run config once. It drives parsing, ranges, defaults, --set, `config show`, the
// JSON schema and the comparison on resume.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/json_text.h"
#include "config/run_config.h"
#include "config/value_rule.h"

namespace gptrain {

enum class Presence {
  optional,  // the default is the member's value in RunConfig{}
  required,  // must be given (keys of `model`: unless a preset is)
  derived,   // computed from other keys when not given, as its description says
};

// A key that has an effect only under some value of another key.
struct Dependency {
  std::string path;       // path of the other key
  std::string condition;  // "model.positions is rope"
  bool (*holds)(const RunConfig&);
};

struct Field {
  std::string path;  // "section.key"
  std::string description;
  ValueRule rule;
  std::function<Json(const RunConfig&)> get;         // null: a shorthand, which `config show` leaves out
  std::function<void(RunConfig&, const Json&)> set;  // REQUIRES: the value satisfies `rule`
  Presence presence = Presence::optional;
  std::string example;  // JSON text of a usual value
  std::optional<Dependency> dependency;
  bool may_change = false;  // true: a resumed run may have another value than its checkpoint

  std::string section() const { return path.substr(0, path.find('.')); }
  std::string key() const { return path.substr(path.find('.') + 1); }
  // Returns true if the key has an effect in `config`. A key without effect holds its default.
  bool used(const RunConfig& config) const { return !dependency || dependency->holds(config); }
};

// Returns true if `config show` prints the field: it has a value and an effect, and does not follow from the number of
// ranks.
bool is_shown(const Field& field, const RunConfig& config);

// Returns all fields in the order in which they are applied (the preset first) and printed.
const std::vector<Field>& fields();
const Field* find_field(std::string_view path);  // nullptr if there is none
std::vector<std::string> section_names();        // in the order of the table

inline constexpr int64_t max_batch_sequences = int64_t{1} << 24;

}  // namespace gptrain
