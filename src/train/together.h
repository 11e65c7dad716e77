// What processes of one run, of which each is about to end, do alike.
#pragma once

namespace gptrain {

// The fact (comm/rendezvous.h) by which ranks compare what they were started with.
inline constexpr const char* config_fact_name = "config";

// Rank 0 says what has happened on all. A launcher that sees another process fail first might kill it before.
void let_rank_0_speak();

}  // namespace gptrain
