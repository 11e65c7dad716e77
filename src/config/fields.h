// The table of fields: every key of a run config once. Parsing, ranges, defaults, --set, `config show`, the JSON schema
// and the comparison on resume are all driven by it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/field.h"

namespace gptrain {

// Whether a text of the config has the field: it has a value that means something there, and is not what the ranks make it.
bool is_shown(const Field& field, const RunConfig& config);

// In the order in which values are applied (the preset first) and printed.
const std::vector<Field>& fields();
const Field* find_field(std::string_view path);  // nullptr if there is none
std::vector<std::string> section_names();        // in the order of the table

inline constexpr int64_t max_batch_sequences = int64_t{1} << 24;

}  // namespace gptrain
