// Ends all processes of a run that cannot start, with one message.
#pragma once

#include "base/error.h"
#include "comm/bootstrap.h"

namespace gptrain::inline train {

// Name of the fact (comm/rendezvous.h) by which ranks compare their configs and options.
inline constexpr const char* config_fact_name = "config";

// Gives rank 0 half a second to print its message. If another process failed first, the launcher might kill rank 0
// before.
void wait_for_rank_0_message();

// Ends a process that cannot train because of `error`, which most often happens on all ranks. Rank 0 prints the error
// at once; then the ranks meet, for at most ten seconds. THROWS an Error with the code of `error`. Its message is empty
// if all ranks met and have the same error. Otherwise it is, on rank 0, the difference or the reason why they
// did not meet; on other ranks, their own error and then that text.
[[noreturn]] void refuse_on_all_ranks(const Launch& launch, const Error& error);

}  // namespace gptrain::train
