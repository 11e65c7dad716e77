#include "machine/hierarchy_times.h"

#include <algorithm>

#include "base/dtype.h"
#include "config/parallelism.h"
#include "model/spec/spec.h"
#include "ops/block_codes.h"

namespace gptrain::inline machine {
namespace {

// Times of collectives over one kind of group.
class GroupTimes {
 public:
  GroupTimes(const ClusterProfile& cluster, const GroupSpan& span, bool directly)
      : cluster_(cluster), span_(span), directly_(directly) {}

  double all_reduce(double bytes) const {
    return directly_ ? 2 * to_all(bytes) : library(Operation::all_reduce, bytes);
  }
  double reduce_scatter(double bytes) const {
    return directly_ ? to_all(bytes) : library(Operation::reduce_scatter, bytes);
  }
  double all_gather(double bytes) const { return directly_ ? to_all(bytes) : library(Operation::all_gather, bytes); }

 private:
  double to_all(double bytes) const {
    return collective_seconds(cluster_, span_, Operation::all_to_all, bytes, Algorithm::direct);
  }
  double library(Operation operation, double bytes) const {
    return collective_time(cluster_, span_, operation, bytes).seconds;
  }

  const ClusterProfile& cluster_;
  const GroupSpan span_;
  const bool directly_;
};

// Returns the mean number of a block's elements on a rank.
double elements_of_block(const StepConfig& config) {
  const ModelSpec spec = make_spec(config.model, config.parallel.expert > 1);
  double elements = 0;
  for (const TensorSpec& tensor : spec.tensors)
    if (tensor.of_block_matrix) elements += static_cast<double>(tensor.count());
  return elements / static_cast<double>(std::max<int64_t>(1, config.model.num_layers) * config.parallel.tensor);
}

}  // namespace

HierarchyTimes hierarchy_times(const ClusterProfile& cluster, const StepConfig& config, const NodeSplit& split,
                               int64_t sharing, bool directly) {
  const auto local = static_cast<double>(split.local), nodes = static_cast<double>(split.nodes);
  const auto shared = static_cast<double>(sharing);
  const GroupTimes all(cluster, {.ranks = local * nodes, .nodes = nodes, .sharing = shared}, directly);
  const GroupTimes node(cluster, {.ranks = local, .nodes = 1, .sharing = shared}, directly);
  const GroupTimes between(cluster, {.ranks = nodes, .nodes = nodes, .sharing = shared}, directly);
  const double elements = elements_of_block(config);
  const double sum = elements * static_cast<double>(dtype_bytes(config.precision.reduce));
  // Codes of 8 bits have an f32 scale for every block.
  const double weights =
      elements * (config.codes_weights() ? 1 + static_cast<double>(dtype_bytes(DType::f32)) / code_block
                                         : static_cast<double>(dtype_bytes(config.precision.compute)));
  if (!cuts_state(config.parallel.zero))
    return {.flat = all.all_reduce(sum),
            .by_node = node.reduce_scatter(sum) + between.all_reduce(sum / local) + node.all_gather(sum)};
  return {.flat = all.reduce_scatter(sum) + all.all_gather(weights),
          .by_node = node.reduce_scatter(sum) + between.reduce_scatter(sum / local) +
                     between.all_gather(weights / local) + node.all_gather(weights)};
}

ClusterProfile assumed_links() {
  ClusterProfile links;
  links.name = "assumed";
  links.link_bytes_per_second = 4e9;
  links.link_sustained = 1;
  links.link_latency_seconds = 20e-6;
  links.nics_per_node = 1;
  links.nic_bytes_per_second = 1.25e9;
  links.nic_sustained = 1;
  links.nic_latency_seconds = 50e-6;
  return links;
}

void choose_hierarchy_by_time(StepConfig& config, int64_t world_size, int64_t ranks_per_node,
                              const ClusterProfile* cluster, bool directly) {
  choose_hierarchy(config, world_size, ranks_per_node, [&](const NodeSplit& split) {
    const int64_t of_node = config.comm.ranks_per_node > 0 ? config.comm.ranks_per_node : ranks_per_node;
    return hierarchy_times(cluster != nullptr ? *cluster : assumed_links(), config, split, of_node, directly)
        .node_is_faster();
  });
}

void choose_planned_hierarchy(StepConfig& config, const Target& target, const Machine* rates, int64_t world_size) {
  const bool has_links = rates != nullptr && rates->cluster.measured == nullptr;
  choose_hierarchy_by_time(config, world_size, target.ranks_per_node, has_links ? &rates->cluster : nullptr,
                           target.kind == Target::Kind::cpu || !target.device_links);
}

}  // namespace gptrain::machine
