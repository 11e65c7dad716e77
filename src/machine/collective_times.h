// How long collectives take on the links of a cluster.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/operation.h"
#include "machine/profiles.h"

namespace gptrain {

// Where the ranks of a group stand: as many on each of its nodes.
struct GroupPlace {
  double ranks = 1;
  double nodes = 1;
  // Ranks of a node, of all groups of this kind, which communicate at the same time and share the node's NICs.
  double sharing = 1;

  double on_a_node() const { return ranks / nodes; }
};
// Neighbouring ranks are on one node. `ranks`: rising or in the order of a ring; world_size: of all.
GroupPlace place_of(const std::vector<int64_t>& ranks, int64_t gpus_per_node, int64_t world_size);

enum class Algorithm : uint8_t {
  ring,          // through all ranks, in each node once
  tree,          // two trees over the nodes, each with half of the data, a chain in each node
  hierarchical,  // reduce-scatter in the node, a ring among ranks of equal places, all-gather in the node
  direct,        // every rank to every other one, or one to one
};
std::string_view algorithm_name(Algorithm algorithm);

struct CollectiveTime {
  double seconds = 0;
  Algorithm algorithm = Algorithm::direct;
};

// By that algorithm; infinity where the operation has none such. `bytes`: of the data, which for reduce_scatter,
// all_gather and all_to_all are those of all ranks' pieces together.
double collective_seconds(const ClusterProfile& cluster, const GroupPlace& place, Operation operation, double bytes,
                          Algorithm algorithm);
// The quickest, as libraries choose.
CollectiveTime collective_time(const ClusterProfile& cluster, const GroupPlace& place, Operation operation,
                               double bytes);

}  // namespace gptrain
