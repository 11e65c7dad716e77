// Published model shapes by name. A preset sets keys of the section `model` and nothing else.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace gptrain {

// Every preset in the order of the table. `preset` holds the name; num_kv_heads and ffn_hidden_size are 0 where the
// model has their default value.
std::span<const ModelConfig> presets();

std::vector<std::string> preset_names();

}  // namespace gptrain
