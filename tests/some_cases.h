// Tells a test to run the fast suite's share of its cases; a `whole` test runs all.
#pragma once

#include <cstdlib>
#include <string_view>

namespace gptrain::testing {

// Returns true if TEST_CASES=some is set: take one case of each kind only.
inline bool some_cases() {
  const char* const wanted = std::getenv("TEST_CASES");
  return wanted != nullptr && std::string_view(wanted) == "some";
}

// Returns false if TEST_CASES is set, as in the fast suite: take a share of a product of cases.
inline bool all_cases() { return std::getenv("TEST_CASES") == nullptr; }

}  // namespace gptrain::testing
