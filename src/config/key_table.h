// The table of keys in configs/README.md.
#pragma once

#include <string>

namespace gptrain::inline config {

// Returns a Markdown table with a row for each key, in the order of the table of fields: path, default, meaning.
std::string config_key_table();

}  // namespace gptrain::config
