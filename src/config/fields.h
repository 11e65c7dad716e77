// The table of fields: every key of a run config once. The table drives parsing, ranges, defaults, --set, `config
// show`, the JSON schema and the comparison on resume.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/field.h"

namespace gptrain::inline config {

// Returns true if `config show` prints the field: it has a value and an effect, and does not follow from the number of
// ranks.
bool is_shown(const Field& field, const RunConfig& config);

// Returns all fields in the order in which they are applied (the preset first) and printed.
const std::vector<Field>& fields();
const Field* find_field(std::string_view path);  // nullptr if there is none
// Returns the value of a key. REQUIRES: it is a key of one of these sections.
Json value_of(std::string_view path, const StepConfig& config);
std::vector<std::string> section_names();  // in the order of the table

inline constexpr int64_t max_batch_sequences = int64_t{1} << 24;

}  // namespace gptrain::config
