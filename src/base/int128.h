// FLOP counts: one step of a trillion-parameter model passes 2^64, and reports promise exact totals.
#pragma once

#include <cstdint>

namespace gptrain::inline base {

__extension__ using Flops = unsigned __int128;

constexpr Flops wide(int64_t value) { return static_cast<Flops>(value); }

}  // namespace gptrain::base
