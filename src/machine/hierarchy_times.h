// Predicted times of sums and gathers over all ranks at once, and by node.
#pragma once

#include <cstdint>

#include "config/node_groups.h"
#include "machine/event_times.h"

namespace gptrain::inline machine {

// Seconds of the sum of a block's gradients and, with ZeRO, of the gather of its weights.
struct HierarchyTimes {
  double flat = 0, by_node = 0;

  // Whether sums by node are faster by more than the last digits of a prediction.
  bool node_is_faster() const { return by_node < 0.999 * flat; }
};

// Returns the times on the cluster's links. `directly`: each rank sends its parts to all others, as processes on CPUs
// do (comm/exchange.h); otherwise a library takes the fastest of its algorithms. `sharing`: ranks that share a node's
// NICs.
HierarchyTimes hierarchy_times(const ClusterProfile& cluster, const StepConfig& config, const NodeSplit& split,
                               int64_t sharing, bool directly);

// Returns the links that a run assumes, as it has no profile: 4 GB/s from a rank to those of its node, and 10 Gbit/s
// between nodes.
ClusterProfile assumed_links();

// Sets parallel.node_replicas (choose_hierarchy), where comm.hierarchy = auto by hierarchy_times. `cluster` null:
// assumed_links.
void choose_hierarchy_by_time(StepConfig& config, int64_t world_size, int64_t ranks_per_node,
                              const ClusterProfile* cluster, bool directly);
// Does so for a plan on a machine, or on this one if `rates` is null.
void choose_planned_hierarchy(StepConfig& config, const Target& target, const Machine* rates, int64_t world_size);

}  // namespace gptrain::machine
