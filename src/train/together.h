// The common end of the processes of a run that cannot go on.
#pragma once

#include "base/error.h"
#include "comm/bootstrap.h"

namespace gptrain {

// The fact (comm/rendezvous.h) by which ranks compare what they were started with.
inline constexpr const char* config_fact_name = "config";

// Rank 0 says what has happened on all. A launcher that sees another process fail first might kill it before.
void let_rank_0_speak();

// For a process that cannot train because of `error`, which is most often so on all ranks: rank 0 prints it for all, at
// once, and then meets the others, which waits for a bounded time. Throws an Error of its code. That has a message
// where the ranks differ in what is wrong, or do not meet: how they do on rank 0, and before it the error itself on
// others.
[[noreturn]] void refuse_together(const Launch& launch, const Error& error);

}  // namespace gptrain
