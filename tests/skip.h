// Reports Catch2 cases that this machine cannot run.
#pragma once

#include <string_view>

namespace gptrain::testing {

// Prints each `why` once. If no case fails, the program then exits with status 77, which Meson counts as skipped.
void skip_case(std::string_view why);

}  // namespace gptrain::testing
