// Loads a RunConfig from a JSON file (comments allowed) and --set overrides, and prints it. The table of fields drives
// all of it.
//
// All faults are found before an Error(usage) is thrown. Its message has a line per fault with the JSON path, the
// value, the rule and the nearest valid value: `model.num_heads = 5: must divide model.hidden_size = 768 (try 6 or 4)`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/lines.h"
#include "config/run_config.h"

namespace gptrain::inline config {

// Loads a config. Precedence, low to high: defaults, the preset, the file, `overrides` ("key.path=value", value in JSON
// or a bare word; the last override of a key counts). A path may name an existing element of a list, a member of one
// ("data.train[0].path"), or a member of an object, which is created if absent ("run.rollback.spike"). The value null
// removes the key (its default then holds), section or element that the path names. The batch is derived for
// `world_size` ranks; a number of ranks that does not suit the mesh fails only when the mesh is made. THROWS
// Error(usage) if the file cannot be read, and for faults of keys and values, all in one message.
RunConfig load_config(const std::filesystem::path& file, std::span<const std::string> overrides,
                      int64_t world_size = 1);
// Loads a config from text; `origin` names the text in messages of syntax errors. THROWS as load_config does.
RunConfig parse_config(std::string_view text, std::span<const std::string> overrides, std::string_view origin,
                       int64_t world_size = 1);

// Returns `config` with `settings` ("key.path=value") applied, each checked by its key's own rule. Rules between keys
// are not checked and nothing is derived again; the value null has no effect. Throws Error(usage) for an unknown key or
// invalid value.
RunConfig with_values(RunConfig config, std::span<const std::string> settings);

// Applies the rules between keys to a config that was changed in memory, as load_config does to a file that gives every
// key of show_config. Returns nullopt if a rule is broken, otherwise the config, with the keys without
// effect at their defaults, and with parallel.elastic the batch derived for at most `world_size` ranks.
std::optional<RunConfig> with_derived_values(RunConfig config, int64_t world_size);

// Returns every value as JSON text, pretty-printed in the order of the table; load_config with the same number of ranks
// reads it back to the same config. Includes derived values; leaves out keys without effect, which load_config refuses.
// `for_any_ranks` leaves out batch.accumulation, so that load_config derives it for its world size; parallel.elastic
// always does.
enum class ConfigText : uint8_t { every_value, for_any_ranks };
std::string show_config(const RunConfig& config, ConfigText text = ConfigText::every_value);

// Returns the section `model` of show_config alone, as a JSON object {"model": ...} without the preset's name.
std::string show_model(const RunConfig& config);

// Returns a line "path = value" for each key with an effect, model.preset and batch.accumulation always included. The
// ranks of a run compare these lines.
std::string list_config(const RunConfig& config);

// Returns a JSON Schema (draft 2020-12) of the config file, with descriptions, ranges, defaults and valid words.
std::string config_schema();

// The config of a checkpoint and the config of a run that starts from it. Refers to both.
struct ConfigChange {
  const RunConfig& saved;
  const RunConfig& asked;
};

// Differences between a saved model and the config `asked` of a run that starts from its weights.
struct ModelChanges {
  Lines refused;                      // differences that make the weights unusable, a line each; empty if they fit
  std::vector<std::string> accepted;  // differences that change how the weights are used, such as model.rope_theta
};
// Compares the sections `model`. Keys that act in training only, such as dropout, are in neither list. A difference
// reads "model.vocab_size: 257 in the checkpoint, 512 in the config".
ModelChanges model_changes(const ConfigChange& change);

// Returns the differences in model or training state that forbid resuming a checkpoint of `saved` as `asked`, a line
// each ("model.num_layers: 12 in the checkpoint, 6 in the config"); empty if it can be resumed. A resumed run may
// change (Field::may_change) all keys that do not change the meaning of weights, moments and the order of the data.
// src/checkpoint/README.md lists them.
Lines resume_conflicts(const ConfigChange& change);
// Returns a line for every key whose value differs: "run.steps: 12 -> 24".
std::vector<std::string> resume_changes(const ConfigChange& change);
// Returns true if both configs mix their training data alike: same sources except for path and dtype, same temperature
// and phases, and phases end at the same samples. Does not look into the files.
bool has_same_mixture(const ConfigChange& change);

}  // namespace gptrain::config
