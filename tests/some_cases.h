// The fast suite's share of a test that has a `whole` one beside it.
#pragma once

#include <cstdlib>
#include <string_view>

namespace gptrain::testing {

// Whether to take one case of each kind only, because TEST_CASES=some is in the environment.
inline bool some_cases() {
  const char* const wanted = std::getenv("TEST_CASES");
  return wanted != nullptr && std::string_view(wanted) == "some";
}

}  // namespace gptrain::testing
