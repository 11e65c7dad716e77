// Two ways to train that must give the same.
#pragma once

#include "catch.h"
#include "layouts.h"

namespace gptrain::testing {

// What `a` has of weights and of the optimizer's state has the same bits in `b`; no copy of either differs from another.
inline void require_bits_of(const Outcome& a, const Outcome& b) {
  REQUIRE(a.torn + b.torn == "");
  for (const auto& [name, values] : a.state) {
    INFO(name);
    REQUIRE(same_bits(values, b.state.at(name)));
  }
}

// Also losses and norms, and `b` has no more.
inline void require_same(const Outcome& a, const Outcome& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  REQUIRE(a.state.size() == b.state.size());
  require_bits_of(a, b);
}

}  // namespace gptrain::testing
