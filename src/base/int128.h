// FLOP counts: one step of a trillion-parameter model passes 2^64, and reports promise exact totals.
#pragma once

namespace gptrain {

__extension__ using Flops = unsigned __int128;

}  // namespace gptrain
