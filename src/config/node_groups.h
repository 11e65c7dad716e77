// The choice of comm.hierarchy, and the nodes on which ranks with the same parameters lie.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "config/run_config.h"

namespace gptrain::inline config {

// How a group of ranks with the same parameters lies on nodes: equally many neighbours on each. 0 if it does not.
struct NodeSplit {
  int64_t local = 0;  // ranks of the group on each of its nodes
  int64_t nodes = 0;

  bool spans_nodes() const { return local > 1 && nodes > 1; }
  bool operator==(const NodeSplit&) const = default;
};

// RETURN the split of ranks with the same dense parameters, and of those with the same experts, if each node has
// `ranks_per_node` neighbouring ranks. ranks_per_node 0: all ranks are on one node; -1: nodes have unlike numbers.
NodeSplit split_of_replicas(const ParallelConfig& parallel, int64_t world_size, int64_t ranks_per_node);
NodeSplit split_of_expert_replicas(const ParallelConfig& parallel, int64_t world_size, int64_t ranks_per_node);

// Sets parallel.node_replicas, from scratch. `ranks_per_node`: from the ranks' host names or the cluster (not from the
// config); comm.ranks_per_node replaces it if above 0. `is_faster_by_node` is asked with comm.hierarchy =
// auto and without parallel.local_steps and zero_node_copy, for a split that spans nodes; if it is true, the key
// becomes node, so that manifests record it; so it does if comm.compression works between nodes. THROWS Error(usage) if
// that or parallel.zero_node_copy is set, but not several nodes have several of the ranks each.
void choose_hierarchy(StepConfig& config, int64_t world_size, int64_t ranks_per_node,
                      const std::function<bool(const NodeSplit&)>& is_faster_by_node);

// RETURNS the number of data ranks that together keep one copy of the errors of compressed sums: those of a node if
// sums are compressed between nodes only, else 1.
int64_t ranks_of_residual(const StepConfig& config);

// RETURNS a sentence about how ranks with the same parameters communicate; empty if nodes play no part and none was
// asked for.
std::string hierarchy_text(const StepConfig& config, int64_t world_size);

}  // namespace gptrain::config
