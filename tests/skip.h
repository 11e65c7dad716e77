// Report of cases of Catch2 that this machine cannot run.
#pragma once

#include <string_view>

namespace gptrain::testing {

// Prints `why`, once. A program in which nothing failed then ends with status 77, which Meson counts as skipped.
void skip_case(std::string_view why);

}  // namespace gptrain::testing
