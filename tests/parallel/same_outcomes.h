// Two ways to train that must give the same.
#pragma once

#include "catch.h"
#include "layouts.h"

namespace gptrain::testing {

// The losses, and the bits of weights and of the optimizer's state; no copy of either differs from another.
inline void require_same(const Outcome& a, const Outcome& b) {
  REQUIRE(a.torn + b.torn == "");
  CHECK(a.losses == b.losses);
  for (const auto& [name, values] : a.state) {
    INFO(name);
    REQUIRE(same_bits(values, b.state.at(name)));
  }
}

}  // namespace gptrain::testing
