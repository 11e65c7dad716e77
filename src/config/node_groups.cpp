#include "config/node_groups.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>

#include "base/error.h"
#include "config/axis_sizes.h"

namespace gptrain::inline config {
namespace {

// Returns the split of `groups` runs of ranks, each `ranks_between` ranks after the one before, of which each run has
// `of_group` ranks.
NodeSplit split_of_runs(int64_t groups, int64_t ranks_between, int64_t of_group, int64_t ranks_per_node) {
  if (ranks_per_node <= 0 || ranks_per_node % ranks_between != 0) return {};
  const int64_t local = std::min(groups, ranks_per_node / ranks_between);
  if (groups % local != 0) return {};
  return {.local = local * of_group, .nodes = groups / local};
}

// THROWS Error(usage) if the key's value needs several nodes with several ranks each, and there are none.
void require_nodes(const NodeSplit& split, std::string_view setting, std::string_view nearest) {
  if (split.spans_nodes()) return;
  throw Error(
      ExitCode::usage,
      "{}: needs several nodes with equally many of the ranks that hold the same parameters, at least two each, "
      "but {} (try {}; comm.ranks_per_node says which ranks count as a node)",
      setting,
      split.nodes == 1   ? "all are on one node"
      : split.local == 1 ? "each node has one"
                         : "they lie otherwise",
      nearest);
}

std::string split_text(const NodeReplicas& replicas, int64_t num_replicas) {
  return fmt::format("{} on each of {} nodes", replicas.dense, num_replicas / replicas.dense);
}

}  // namespace

NodeSplit split_of_replicas(const ParallelConfig& parallel, int64_t world_size, int64_t ranks_per_node) {
  const int64_t of_model = ranks_of_model(parallel);
  if (world_size % of_model != 0 || (ranks_per_node > 0 && world_size % ranks_per_node != 0)) return {};
  const int64_t data = world_size / of_model;
  if (ranks_per_node == 0) return {.local = replicas_of_parameters(parallel, world_size), .nodes = 1};
  const bool pipeline_is_between = parallel.rank_order == RankOrder::tensor_pipeline_data;
  const int64_t between = pipeline_is_between ? of_model : of_model / parallel.pipeline;
  return split_of_runs(data, between, parallel.context, ranks_per_node);
}

NodeSplit split_of_expert_replicas(const ParallelConfig& parallel, int64_t world_size, int64_t ranks_per_node) {
  const int64_t of_experts = parallel.expert_tensor * parallel.expert;
  const int64_t of_stage = world_size / parallel.pipeline;
  const bool is_one_run = parallel.pipeline == 1 || parallel.rank_order == RankOrder::tensor_data_pipeline;
  if (!is_one_run || of_stage % of_experts != 0 || (ranks_per_node > 0 && of_stage % ranks_per_node != 0)) return {};
  if (ranks_per_node == 0) return {.local = of_stage / of_experts, .nodes = 1};
  return split_of_runs(of_stage / of_experts, of_experts, 1, ranks_per_node);
}

void choose_hierarchy(StepConfig& config, int64_t world_size, int64_t ranks_per_node,
                      const std::function<bool(const NodeSplit&)>& is_faster_by_node) {
  ParallelConfig& parallel = config.parallel;
  parallel.node_replicas = {};
  if (config.comm.ranks_per_node > 0) ranks_per_node = config.comm.ranks_per_node;
  const NodeSplit split = split_of_replicas(parallel, world_size, ranks_per_node);
  if (parallel.zero_node_copy) {
    require_nodes(split, "parallel.zero_node_copy = true", "false");
    parallel.node_replicas.dense = split.local;
    return;
  }
  if (config.comm.compression.is_between_nodes()) {
    require_nodes(split, "comm.compression: between = \"nodes\"", "\"all\"");
    config.comm.hierarchy = CommHierarchy::node;
  }
  const CommHierarchy asked = config.comm.hierarchy;
  if (asked == CommHierarchy::flat || parallel.local_steps.is_on() || !split.spans_nodes()) return;
  if (asked == CommHierarchy::automatic && !is_faster_by_node(split)) return;
  parallel.node_replicas.dense = split.local;
  config.comm.hierarchy = CommHierarchy::node;
  if (parallel.expert == 1) return;
  const NodeSplit of_experts = split_of_expert_replicas(parallel, world_size, ranks_per_node);
  if (of_experts.spans_nodes()) parallel.node_replicas.experts = of_experts.local;
}

int64_t ranks_of_residual(const StepConfig& config) {
  return config.comm.compression.is_between_nodes() ? std::max<int64_t>(1, config.parallel.node_replicas.dense) : 1;
}

std::string hierarchy_text(const StepConfig& config, int64_t world_size) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t replicas = replicas_of_parameters(parallel, world_size);
  if (parallel.zero_node_copy)
    return fmt::format("data ranks cut their state within nodes and copy it between them: {}",
                       split_text(parallel.node_replicas, replicas));
  if (parallel.sums_by_node())
    return fmt::format("data ranks communicate by node: {}{}", split_text(parallel.node_replicas, replicas),
                       config.comm.compression.is_between_nodes() ? ", with gradients compressed between nodes" : "");
  if (config.comm.hierarchy != CommHierarchy::node) return "";
  return "data ranks communicate flat, as not several nodes have equally many of them, at least two each";
}

}  // namespace gptrain::config
