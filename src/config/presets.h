// Published model shapes by name. A preset sets keys of the section `model` and nothing else.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace gptrain::inline config {

// Returns all presets in the order of the table. `preset` is the name; num_kv_heads and ffn_hidden_size are 0 if the
// model has their defaults.
std::span<const ModelConfig> presets();

std::vector<std::string> preset_names();

}  // namespace gptrain::config
