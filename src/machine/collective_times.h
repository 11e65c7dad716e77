// Predicted times of collectives on the links of a cluster.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/operation.h"
#include "machine/profiles.h"

namespace gptrain::inline machine {

// How a group's ranks are spread over nodes, equally many on each.
struct GroupSpan {
  double ranks = 1;
  double nodes = 1;
  double sharing = 1;  // number of ranks, over all groups of this kind, that share a node's NICs at the same time

  double on_a_node() const { return ranks / nodes; }
};
// Returns the nodes and links of the group of `ranks` (any order) in a run of `world_size` ranks, which fill node after
// node.
GroupSpan span_of(const std::vector<int64_t>& ranks, int64_t gpus_per_node, int64_t world_size);

enum class Algorithm : uint8_t {
  ring,          // one ring through all ranks, which enters each node once
  tree,          // two trees over the nodes, each with half of the data; a chain of ranks in each node
  hierarchical,  // reduce-scatter in each node, a ring among ranks of equal local index, all-gather in each node
  direct,        // each rank sends to every other one, or one rank to one other
};
std::string_view algorithm_name(Algorithm algorithm);

struct CollectiveTime {
  double seconds = 0;
  Algorithm algorithm = Algorithm::direct;
};

// Returns the seconds with the given algorithm, or infinity if the operation cannot use it; 0 for a group of one rank.
// `bytes` is the size of the data: for reduce_scatter and all_gather of all ranks' pieces together, for all_to_all of
// all parts that one rank sends, its own included.
double collective_seconds(const ClusterProfile& cluster, const GroupSpan& span, Operation operation, double bytes,
                          Algorithm algorithm);
// Returns the time of the fastest algorithm, which libraries are assumed to choose.
CollectiveTime collective_time(const ClusterProfile& cluster, const GroupSpan& span, Operation operation, double bytes);

// Routing of tokens to experts, which are spread evenly over the ranks of a group.
struct TokenRoutes {
  int64_t experts = 1;
  int64_t top_k = 1;  // different experts of a token

  // Returns how many of `parts` parts with equally many experts have at least one of a token's experts, on average over
  // uniform choices. REQUIRES: `parts` divides `experts`.
  double expected_parts(int64_t parts) const;
};

// Returns the seconds of an exchange that sends a token once to each node with any of its experts, and there once to
// each such rank. On the way back, a node's results of a token are summed before they leave it. `bytes`: of the rows
// that one rank would send if each of a token's experts got a row. REQUIRES: the group has several ranks.
double exchange_by_nodes_seconds(const ClusterProfile& cluster, const GroupSpan& span, const TokenRoutes& routes,
                                 double bytes);

}  // namespace gptrain::machine
