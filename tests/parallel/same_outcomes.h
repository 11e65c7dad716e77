// Comparisons of two outcomes that must be equal.
#pragma once

#include "catch.h"
#include "layouts.h"

namespace gptrain::testing {

// Requires that the weights and optimizer state in `a` have the same bits in `b`, and that no replica of either
// differs.
inline void require_bits_of(const Outcome& a, const Outcome& b) {
  REQUIRE(a.torn + b.torn == "");
  for (const auto& [name, values] : a.state) {
    INFO(name);
    REQUIRE(same_bits(values, b.state.at(name)));
  }
}

// Requires equal losses and norms as well, and no more state in `b`.
inline void require_same(const Outcome& a, const Outcome& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  REQUIRE(a.state.size() == b.state.size());
  require_bits_of(a, b);
}

}  // namespace gptrain::testing
