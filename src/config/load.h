// From a JSON file (comments allowed) and --set overrides to a RunConfig, and back. One table of fields drives all of
// it.
//
// All faults are found before anything is thrown: the message of the Error(usage) holds one line per fault, each with
// its JSON path, its value, the rule, and the nearest valid value: `model.num_heads = 5: must divide model.hidden_size
// = 768 (try 6 or 4)`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"

namespace gptrain {

// Precedence, low to high: defaults, the preset, the file, `overrides` ("key.path=value", value in JSON or a bare
// word; of two overrides of one key the later one counts). A path may name an element of a list that is there, a
// member of one ("data.train[0].path"), or a member of an object, which need not be there ("run.rollback.spike"). Null
// takes out what the path names: a key, for which the default then holds, a section, an element. The batch is derived for
// `world_size` ranks; a number of ranks that the mesh does not divide into is found when the mesh is made.
RunConfig load_config(const std::filesystem::path& file, std::span<const std::string> overrides,
                      int64_t world_size = 1);
// The same from text; `origin` names it in messages of syntax errors (with line and column).
RunConfig parse_config(std::string_view text, std::span<const std::string> overrides, std::string_view origin,
                       int64_t world_size = 1);

// The config with the values of `settings` ("key.path=value"), each by the rule of its own key alone: those between keys
// are not applied. Error(usage): a key or a value is none.
RunConfig with_values(RunConfig config, std::span<const std::string> settings);

// What load_config makes of these values for `world_size` ranks, where each is given that has an effect. None: a rule
// between keys forbids them.
std::optional<RunConfig> settled(RunConfig config, int64_t world_size);

// Every value as JSON text that load_config reads back, for as many ranks, to the same config; pretty-printed in the
// order of the table. Derived values are printed too; keys without effect under the other values, which load_config
// refuses, are not. `for_any_ranks` leaves out batch.accumulation, so that load_config derives it for its world size;
// with parallel.elastic it is never there.
enum class ConfigText : uint8_t { every_value, for_any_ranks };
std::string show_config(const RunConfig& config, ConfigText text = ConfigText::every_value);

// The same values, one line "path = value" each.
std::string list_config(const RunConfig& config);

// A JSON Schema (draft 2020-12) of the config file, with descriptions, ranges, defaults and valid words.
std::string config_schema();

// What a run with the config `asked` makes of a model that was saved with `saved`, whose weights it starts from.
struct ModelChanges {
  std::string refused;                // one line each, where the weights are of another model; empty if they fit
  std::vector<std::string> accepted;  // keys that change what is computed with them: "model.vocab_size: 257 in ..."
};
ModelChanges model_changes(const RunConfig& saved, const RunConfig& asked);

// Where the two configs describe different models or training state, one line each ("model.num_layers: 12 in the
// checkpoint, 6 in the config"); empty if a checkpoint of `saved` can be resumed as `asked`. What may change on resume
// (Field::may_change): all that does not change the meaning of weights, moments and the order of the data.
// src/checkpoint/README.md lists it.
std::string resume_conflicts(const RunConfig& saved, const RunConfig& asked);
// Every key with another value, one line each: "run.steps: 12 -> 24".
std::vector<std::string> resume_changes(const RunConfig& saved, const RunConfig& asked);
// Whether sources come in the same shares at the same samples, wherever they lie.
bool has_same_mixture(const RunConfig& saved, const RunConfig& asked);

}  // namespace gptrain
