// Words of `gptrain plan`'s options: numbers between separators, and keys with their values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/studies.h"

namespace gptrain::inline cli {

// Parses whole numbers >= 1 between `separator`s. THROWS Error(usage) for anything else; `example` is a valid text.
std::vector<int64_t> numbers_of(std::string_view option, std::string_view text, std::string_view separator,
                                std::string_view example);

// Parses the values of --sweep: KEY=V,... THROWS Error(usage) if one is no key with values, or if there are more than
// two.
std::vector<SweepAxis> axes_of(const std::vector<std::string>& words);

}  // namespace gptrain::cli
