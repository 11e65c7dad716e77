// The choice of parallel.context_method where the key is "auto". Parsing makes it for ranks on one node.
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace gptrain::inline config {

// RETURNS whether a model's experts allow that ranks share sequences.
bool may_share_sequences(const MoeConfig& moe);

// RETURN whether the tokens, heads and patterns allow the config's context ranks to use a method. REQUIRES:
// parallel.tensor divides model.num_heads.
bool suits_heads(const StepConfig& config);
bool suits_ring(const StepConfig& config);

// RETURNS whether some ranks that share sequences are on different nodes, if each node
// has `ranks_per_node` neighbouring ranks; 0: all ranks are on one node.
bool leaves_node(const ParallelConfig& parallel, int64_t ranks_per_node);

// Makes the choice anew once the nodes are known: replaces heads by ring in a parsed config whose key was "auto", if
// `leaves_node` and suits_ring(config). No effect otherwise.
void choose_context_method(StepConfig& config, bool leaves_node);

}  // namespace gptrain::config
