// Two ways to train that must give the same.
#pragma once

#include "catch.h"
#include "layouts.h"

namespace gptrain::testing {

// Losses, norms, and the bits of weights and of the optimizer's state; no copy of either differs from another.
inline void require_same(const Outcome& a, const Outcome& b) {
  REQUIRE(a.torn + b.torn == "");
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  REQUIRE(a.state.size() == b.state.size());
  for (const auto& [name, values] : a.state) {
    INFO(name);
    REQUIRE(same_bits(values, b.state.at(name)));
  }
}

}  // namespace gptrain::testing
