// One row of the table of fields: a key of a run config with its rule and description.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "config/json_text.h"
#include "config/run_config.h"
#include "config/value_rule.h"

namespace gptrain::inline config {

enum class Presence {
  optional,  // the default is the member's value in RunConfig{}
  required,  // must be given (keys of `model`: unless a preset is)
  derived,   // computed from other keys when not given, as its description says
};

// A key that has an effect only under some value of another key.
struct Dependency {
  std::string path;       // path of the other key
  std::string condition;  // "model.positions is rope"
  std::function<bool(const RunConfig&)> holds;
};

// Returns a condition on one section of a config.
template <typename Owner, typename Section, typename Holds>
std::function<bool(const RunConfig&)> when(Section Owner::*section, Holds holds) {
  return [=](const RunConfig& config) { return holds(config.*section); };
}

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

}  // namespace gptrain::config
