#include "report/dry_run_ranks.h"

#include <fmt/format.h>
#include <string_view>

#include "base/text_parts.h"
#include "base/units.h"
#include "config/node_groups.h"

namespace gptrain::inline report {

using Json = nlohmann::ordered_json;

namespace {

int64_t ranks_per_node(const DryRun& input) {
  const int64_t asked = input.config.comm.ranks_per_node;
  return asked > 0 ? asked : input.target.ranks_per_node;
}

std::string_view link_class(const DryRun& input, GroupKind kind) {
  return lies_within_a_node(input.config, input.world.mesh, 0, kind, ranks_per_node(input)) ? "within a node"
                                                                                            : "between nodes";
}

// Returns whether the groups of that kind would lie within nodes if ranks had that order: "38% within nodes".
std::string links_in_order(const DryRun& input, RankOrder order, GroupKind kind) {
  RunConfig config = input.config;
  config.parallel.rank_order = order;
  const Mesh mesh = make_mesh(config, input.world.mesh.world_size());
  int64_t within = 0;
  int64_t all = 0;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    if (group_ranks(config, mesh, rank, kind).size() == 1) continue;  // the rank has no next stage
    ++all;
    within += lies_within_a_node(config, mesh, rank, kind, ranks_per_node(input)) ? 1 : 0;
  }
  if (within == 0) return "between nodes";
  if (within == all) return "within nodes";
  return fmt::format("{:.0f}% within nodes", 100.0 * static_cast<double>(within) / static_cast<double>(all));
}

// Returns, for each rank order, which groups lie within nodes; empty if both orders are equal.
std::string orders_section(const DryRun& input) {
  const Mesh& mesh = input.world.mesh;
  if (mesh.size(MeshAxis::data) == 1 || mesh.size(MeshAxis::pipeline) == 1) return "";
  std::string text;
  for (size_t i = 0; i < rank_order_names.size(); ++i) {
    const auto order = static_cast<RankOrder>(i);
    text += text_row(order == mesh.order() ? "order" : "other order", std::string(rank_order_names[i]),
                     fmt::format("data ranks {}, stages {}", links_in_order(input, order, GroupKind::data),
                                 links_in_order(input, order, GroupKind::next)));
  }
  return text;
}

// Calls body(lane, group, operation, traffic) for each operation that rank 0 calls.
template <typename Body>
void for_each_traffic(const LaneTraffic& of_lanes, const Body& body) {
  for (size_t lane = 0; lane < num_lanes; ++lane) {
    for (size_t kind = 0; kind < num_group_kinds; ++kind) {
      for (size_t operation = 0; operation < num_operations; ++operation) {
        const Traffic& traffic = of_lanes[lane][kind][operation];
        if (traffic.calls > 0) body(lane, kind, operation, traffic);
      }
    }
  }
}

// Returns whether the traffic depends on the routing of tokens; a plan has that of experts with equally many.
bool is_expected(size_t lane, size_t operation) {
  return static_cast<LaneKind>(lane) == LaneKind::expert &&
         static_cast<Operation>(operation) == Operation::all_to_all_v;
}

// Returns the section with the bytes that rank 0 sends in a step of one kind.
std::string traffic_text(const DryRun& input, const std::string& step, const LaneTraffic& of_lanes) {
  std::string text = fmt::format("\nsent by rank 0 in one {}\n", step);
  for_each_traffic(of_lanes, [&](size_t lane, size_t kind, size_t operation, const Traffic& traffic) {
    text += text_row(
        fmt::format("{} {}", group_names[kind], operation_names[operation]), format_grouped(traffic.sent_bytes),
        fmt::format("{}{}, {}, {}, lane {}", is_expected(lane, operation) ? "expected " : "",
                    format_bytes(static_cast<double>(traffic.sent_bytes)), format_counted(traffic.calls, "call"),
                    link_class(input, static_cast<GroupKind>(kind)), lane_names[lane]));
  });
  return text;
}

Json traffic_json(const DryRun& input, const LaneTraffic& of_lanes) {
  Json json = Json::array();
  for_each_traffic(of_lanes, [&](size_t lane, size_t kind, size_t operation, const Traffic& traffic) {
    json.push_back({{"lane", lane_names[lane]},
                    {"group", group_names[kind]},
                    {"collective", operation_names[operation]},
                    {"calls", traffic.calls},
                    {"sent_bytes", traffic.sent_bytes},
                    {"link", link_class(input, static_cast<GroupKind>(kind))}});
    if (is_expected(lane, operation)) json.back()["expected"] = true;
  });
  return json;
}

}  // namespace

std::string other_steps_text(const StepForecast& forecast) {
  std::string text;
  if (forecast.warm_up_seconds > 0)
    text += text_row(
        "warm-up step", seconds_text(forecast.warm_up_seconds),
        fmt::format("of the first {}, {}", format_counted(forecast.warm_up_steps, "step"), forecast.warm_up_work));
  if (forecast.averaging_seconds > 0)
    text += text_row("averaging step", seconds_text(forecast.averaging_seconds),
                     fmt::format("one in {}: {}", format_grouped(forecast.averaging_every), forecast.averaging_work));
  return text;
}

void add_other_steps(Json& json, const StepForecast& forecast) {
  if (forecast.warm_up_seconds > 0) json["warm_up_step_seconds"] = forecast.warm_up_seconds;
  if (forecast.averaging_seconds > 0) json["averaging_step_seconds"] = forecast.averaging_seconds;
}

std::string ranks_section(const DryRun& input) {
  const Mesh& mesh = input.world.mesh;
  if (mesh.world_size() == 1) return "";
  std::string text = "\nranks\n";
  for (const MeshAxis axis : all_mesh_axes) {
    if (mesh.size(axis) == 1) continue;
    std::string remark;
    if (axis == MeshAxis::tensor)
      remark = input.config.parallel.sequence ? "neighbours; sequence parallel" : "neighbours";
    if (axis == MeshAxis::context)
      remark = fmt::format("by {}", context_method_names[input.config.parallel.context_method]);
    if (axis == MeshAxis::data) remark = fmt::format("ZeRO {}", input.config.parallel.zero);
    text += text_row(axis_name(axis), format_grouped(mesh.size(axis)), remark);
  }
  if (mesh.size(ExpertAxis::expert) > 1)
    text += text_row(
        "expert", format_grouped(mesh.size(ExpertAxis::expert)),
        fmt::format("share experts, each of which is {}on {} of a stage",
                    mesh.size(ExpertAxis::expert_tensor) > 1
                        ? fmt::format("cut over {} and ", mesh.size(ExpertAxis::expert_tensor))
                        : "",
                    format_counted(mesh.size(ExpertAxis::expert_tensor) * mesh.size(ExpertAxis::expert_data), "rank")));
  text += text_row("total", format_grouped(mesh.world_size()));
  text += orders_section(input);
  if (link_class(input, GroupKind::tensor) == "between nodes")
    text += fmt::format(
        "  Tensor groups span nodes of {}. With parallel.tensor = {} their traffic stays on a node's links.\n",
        ranks_per_node(input), ranks_per_node(input));
  if (const std::string by_node = hierarchy_text(input.config, mesh.world_size()); !by_node.empty())
    text += fmt::format("  {}\n", by_node);
  text += traffic_text(input, "step", input.world.traffic);
  for (const ProgramTraffic& other : input.world.other_traffic)
    text += traffic_text(input,
                         other.name == "left" || other.name == "right"
                             ? fmt::format("step that sums {} factors", other.name)
                             : fmt::format("{} step", other.name),
                         other.traffic);
  return text;
}

std::string pipeline_section(const DryRun& input) {
  if (input.stages.size() < 2) return "";
  const ParallelConfig& parallel = input.config.parallel;
  std::string text = "\npipeline\n";
  text += text_row("schedule", std::string(pipeline_order_names[parallel.pipeline_schedule]),
                   fmt::format("{} stages{}, {} each step", parallel.pipeline,
                               parallel.virtual_stages > 1 ? fmt::format(" of {} chunks", parallel.virtual_stages) : "",
                               format_counted(input.config.batch.accumulation, "micro-batch")));
  if (input.pipeline) {
    text += text_row("bubble", fmt::format("{:.1f}%", 100 * input.pipeline->bubble()),
                     "time that stages wait for each other, over the time of their passes");
  }
  text += fmt::format("  {:>5} {:>7} {:>10} {:>10}", "stage", "layers", "in flight", "peak");
  text += input.pipeline ? fmt::format(" {:>10} {:>10}\n", "passes", "waits") : "\n";
  for (size_t i = 0; i < input.stages.size(); ++i) {
    const StageForecast& stage = input.stages[i];
    text += fmt::format("  {:>5} {:>7} {:>10} {:>10}", i, stage.layers, stage.in_flight,
                        format_bytes(static_cast<double>(stage.peak_bytes)));
    if (input.pipeline) {
      const PlannedStage& times = input.pipeline->stages[i];
      text += fmt::format(" {:>10} {:>10}", seconds_text(times.busy_seconds), seconds_text(times.waiting_seconds));
    }
    text += '\n';
  }
  return text;
}

Json pipeline_json(const DryRun& input) {
  Json json{{"schedule", pipeline_order_names[input.config.parallel.pipeline_schedule]}};
  if (input.pipeline) {
    json["bubble"] = input.pipeline->bubble();
  }
  for (size_t i = 0; i < input.stages.size(); ++i) {
    const StageForecast& stage = input.stages[i];
    Json entry{{"layers", stage.layers}, {"in_flight", stage.in_flight}, {"peak_bytes", stage.peak_bytes}};
    if (input.pipeline) {
      entry["busy_seconds"] = input.pipeline->stages[i].busy_seconds;
      entry["waiting_seconds"] = input.pipeline->stages[i].waiting_seconds;
    }
    json["stages"].push_back(entry);
  }
  return json;
}

Json world_json(const DryRun& input) {
  Json json;
  const Mesh& mesh = input.world.mesh;
  json["world_size"] = mesh.world_size();
  for (const MeshAxis axis : all_mesh_axes) {
    if (axis == MeshAxis::data) {
      json["mesh"]["expert"] = mesh.size(ExpertAxis::expert);
      json["mesh"]["expert_tensor"] = mesh.size(ExpertAxis::expert_tensor);
    }
    json["mesh"][std::string(axis_name(axis))] = mesh.size(axis);
  }
  if (mesh.size(MeshAxis::context) > 1)
    json["context_method"] = context_method_names[input.config.parallel.context_method];
  if (const NodeReplicas& of_node = input.config.parallel.node_replicas; of_node.dense > 0)
    json["hierarchy"] = {{"word", comm_hierarchy_names[static_cast<size_t>(CommHierarchy::node)]},
                         {"replicas_of_node", of_node.dense}};
  json["rank_order"] = rank_order_names[mesh.order()];
  json["largest_rank"] = input.world.largest_rank;
  json["traffic"] = traffic_json(input, input.world.traffic);
  for (const ProgramTraffic& other : input.world.other_traffic)
    json["traffic_of_other_steps"][std::string(other.name)] = traffic_json(input, other.traffic);
  return json;
}

}  // namespace gptrain::report
