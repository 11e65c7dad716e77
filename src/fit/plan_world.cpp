#include "fit/plan_world.h"

#include <algorithm>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/control_group.h"
#include "fit/choose_step.h"
#include "fit/fixed_choices.h"
#include "fit/micro_batches.h"
#include "parallel/make_stages.h"
#include "schedule/pipeline/pipeline.h"

namespace gptrain::inline fit {
namespace {

StagePlan describe_stage(const StepDesign& design, int64_t rank) {
  const Stages& stages = design.stages;
  StagePlan plan{.rank = rank, .memory = {}};
  for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk) {
    if (stages.stage_of_chunk(chunk) != stages.stage) continue;
    const int32_t begin = std::max(stages.first_unit(chunk) - 1, 0);
    const int32_t end = std::min(stages.end_unit(chunk) - 1, stages.num_layers() - 2);
    plan.num_layers += std::max(end - begin, 0);
  }
  int64_t in_flight = 0;
  const std::shared_ptr<const PassLists> passes = passes_of(*stages.schedule, stages.shape);
  for (const Pass& pass : (*passes)[stages.stage]) {
    if (pass.kind == PassKind::forward) ++in_flight;
    if (pass.kind == PassKind::backward || pass.kind == PassKind::backward_weight) --in_flight;
    plan.in_flight = std::max(plan.in_flight, in_flight);
  }
  const Schedule& schedule = design.training->schedule;
  for (int32_t unit = 0; unit < schedule.num_layers(); ++unit)
    plan.num_offloaded += stages.runs(unit) && schedule.traits(unit).offload.any();
  return plan;
}

// The tensor ranks of a stage whose plans are equal.
using TensorRanks = std::vector<int64_t>;

// Groups the tensor ranks of a stage by kind. Plans differ by the rows of the vocabulary, by the biases and positions
// of the first rank, and by whether the rank's keys and values are a copy of another rank's.
std::vector<TensorRanks> kinds_of_tensor_ranks(const ModelConfig& model, int64_t tensor_size) {
  std::map<std::tuple<bool, int64_t, bool>, size_t> numbers;
  std::vector<TensorRanks> kinds;
  const int64_t rows = vocabulary_rows(model.vocab_size, tensor_size);
  for (int64_t rank = 0; rank < tensor_size; ++rank) {
    const std::tuple kind(rank == 0, std::clamp<int64_t>(model.vocab_size - rank * rows, 0, rows),
                          rank % ranks_of_kv_head(model, tensor_size) == 0);
    const auto [entry, is_new] = numbers.try_emplace(kind, kinds.size());
    if (is_new) kinds.emplace_back();
    kinds[entry->second].push_back(rank);
  }
  return kinds;
}

constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

struct KindPlan {
  TensorRanks ranks;
  int64_t rank = 0;  // the first of the kind in the world
  StepPlan plan;
};

struct PlannedStage {
  StepChoices choices;
  std::vector<KindPlan> kinds;
};

// Plans a stage: tensor ranks with shards of equal sizes are one kind, of which the first is planned. Stops after a
// rank that takes more than `enough` bytes of its device.
PlannedStage plan_stage(const PlanCase& run, const Mesh& mesh, int64_t stage, int64_t enough) {
  PlannedStage planned{.choices = choose_step(run, static_cast<int32_t>(stage)), .kinds = {}};
  std::shared_ptr<const Program> program;  // the first rank's; ranks with an equal program share it
  for (TensorRanks& ranks : kinds_of_tensor_ranks(run.config.model, mesh.size(MeshAxis::tensor))) {
    const int64_t rank = mesh.first_rank_of_stage(stage, ranks.front());
    planned.kinds.push_back({std::move(ranks), rank, plan_step(run, planned.choices, rank, program)});
    const StepPlan& plan = planned.kinds.back().plan;
    if (plan.memory().arenas.total() > enough) break;
    if (!program) program = plan.design->training;
  }
  return planned;
}

// Plans the stages on the process's cores and calls take(stage, planned) with one after the other on the calling
// thread. Stops after a stage with a rank that takes more than `enough` bytes of its device; the first stage is
// planned alone, as it often suffices.
template <typename Take>
void for_each_stage(const PlanCase& run, const Mesh& mesh, const std::vector<int64_t>& stages, int64_t enough,
                    const Take& take) {
  const auto plan = [&](size_t number) { return plan_stage(run, mesh, stages[number], enough); };
  // Whether the stages behind are needed.
  const auto goes_on = [&](size_t number, PlannedStage planned) {
    const bool is_enough = planned.kinds.back().plan.memory().arenas.total() > enough;
    take(stages[number], std::move(planned));
    return !is_enough;
  };
  if (!goes_on(0, plan(0))) return;
  constexpr int most_at_once = 8;  // each takes some 10 MB for thousands of micro-batches
  const auto at_once = static_cast<size_t>(std::min(usable_cores(), most_at_once));
  std::deque<std::future<PlannedStage>> ahead;
  size_t begun = 1;
  for (size_t number = 1; number < stages.size(); ++number) {
    // A thread that cannot be started is no failure: `get` then plans the stage.
    for (; begun < std::min(number + at_once, stages.size()); ++begun)
      ahead.push_back(std::async(std::launch::async | std::launch::deferred, plan, begun));
    PlannedStage planned = ahead.front().get();
    ahead.pop_front();
    if (!goes_on(number, std::move(planned))) return;
  }
}

std::vector<int64_t> all_stages(int64_t num_stages) {
  std::vector<int64_t> stages(num_stages);
  std::iota(stages.begin(), stages.end(), 0);
  return stages;
}

void add_ops(OpTable& sum, const OpTable& of_rank, int64_t num_ranks) {
  const auto times = static_cast<Flops>(num_ranks);
  for (size_t op = 0; op < num_ops; ++op) {
    sum[op] += {of_rank[op].calls * num_ranks, of_rank[op].model_flops * times, of_rank[op].executed_flops * times,
                of_rank[op].bytes_moved * times};
  }
}

// Adds the plan of a kind to the world's. `first_position`: position of the stage's tensor rank 0 in vectors by kind.
void add_kind(WorldPlan& world, const KindPlan& kind, int64_t first_position, int64_t equal_ranks) {
  const StepPlan& plan = kind.plan;
  const StepMemory& memory = plan.memory();
  const int64_t bytes = memory.arenas.total();
  for (const int64_t tensor_rank : kind.ranks) {
    const auto position = static_cast<size_t>(first_position + tensor_rank);
    world.written_bytes[position] = plan.written_bytes;
    world.on_host[position] = memory.arenas.host_memory();
  }
  const bool is_first = kind.ranks.front() == 0;
  if (is_first) world.stages.push_back(describe_stage(*plan.design, kind.rank));
  StagePlan& of_stage = world.stages.back();
  if (is_first || bytes > of_stage.memory.arenas.total()) {
    of_stage.rank = kind.rank;
    of_stage.memory = memory;
  }
  const int64_t more = bytes - world.largest.arenas.total();
  if (kind.rank == 0 || more > 0 || (more == 0 && kind.rank < world.largest_rank)) {
    world.largest_rank = kind.rank;
    world.largest = memory;
  }
  add_ops(world.ops, plan.ops, std::ssize(kind.ranks) * equal_ranks);
  if (kind.rank != 0) return;
  world.spec = *plan.design->spec;
  world.traffic = plan.traffic;
  world.other_traffic = plan.other_traffic;
  world.warnings = plan.warnings;
}

RankBytes bytes_of_stages(const PlanCase& run, const std::vector<int64_t>& stages, int64_t enough) {
  const Mesh mesh = make_mesh(run.config, run.world_size);
  const int64_t tensor_size = mesh.size(MeshAxis::tensor);
  RankBytes most;
  most.on_host.resize(mesh.size(MeshAxis::pipeline) * tensor_size);
  for_each_stage(run, mesh, stages, enough, [&](int64_t stage, const PlannedStage& planned) {
    for (const KindPlan& kind : planned.kinds) {
      for (const int64_t tensor_rank : kind.ranks)
        most.on_host[stage * tensor_size + tensor_rank] = kind.plan.memory().arenas.host_memory();
      most.on_device = std::max(most.on_device, kind.plan.memory().arenas.total());
    }
  });
  return most;
}

// The properties of a layer that decide its memory. Two stages with equally many layers, equal in these properties,
// take the same memory for them if they have the same number of micro-batches in flight.
struct LayerFacts {
  FfnKind ffn;
  AttentionPattern attention;
  bool rotates = false;
  bool saves_part = false;
  bool is_recomputed = false;

  bool operator==(const LayerFacts&) const = default;
};

// Returns true if stages can differ in LayerFacts only: nothing is left to a search, no activations are offloaded, and
// the optimizer state of all units lies in one place.
bool has_fixed_choices(const MemoryConfig& memory) {
  return memory.recompute != RecomputeKind::optimal && memory.offload == offload::none && !memory.fits_places() &&
         (!memory.keeps_state_away() || memory.offload_optimizer_share == 1);
}

// Returns the stages that may take the most memory, in rising order: the first, the second, the last, and those with
// other layers than the stage before. Later stages with equal layers have at most as many micro-batches in flight.
std::vector<int64_t> stages_of_peak(const RunConfig& config) {
  const ModelConfig& model = config.model;
  const Stages stages = make_stages(config, 0, config.batch.accumulation, false);
  const UnitChoices choices =
      has_fixed_choices(config.memory) ? fixed_units(config) : UnitChoices(model.num_layers + 2);
  std::vector<std::vector<LayerFacts>> layers(config.parallel.pipeline);  // layers of each stage, chunk after chunk
  for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk) {
    const int64_t end = std::min<int64_t>(stages.end_unit(chunk), model.num_layers + 1);
    for (int64_t unit = std::max(stages.first_unit(chunk), 1); unit < end; ++unit)
      layers[stages.stage_of_chunk(chunk)].push_back({.ffn = model.ffn(unit - 1),
                                                      .attention = model.attention(unit - 1),
                                                      .rotates = model.rotates(unit - 1),
                                                      .saves_part = choices[unit].saves_part,
                                                      .is_recomputed = choices[unit].recompute_from >= 0});
  }
  std::vector<int64_t> found;
  for (size_t stage = 0; stage < layers.size(); ++stage)
    if (stage < 2 || stage + 1 == layers.size() || layers[stage] != layers[stage - 1])
      found.push_back(static_cast<int64_t>(stage));
  return found;
}

// Copies the host's bytes of the stage before to each stage that is not in `stages`. REQUIRES: stage 0 is in `stages`.
void fill_in_host_bytes(RankBytes& bytes, const ParallelConfig& parallel, const std::vector<int64_t>& stages) {
  for (int64_t stage = 0; stage < parallel.pipeline; ++stage) {
    if (std::find(stages.begin(), stages.end(), stage) != stages.end()) continue;
    const auto position = bytes.on_host.begin() + stage * parallel.tensor;
    std::copy(position - parallel.tensor, position, position);
  }
}

}  // namespace

WorldPlan plan_world(const PlanCase& run, const std::function<void(int64_t, StepPlan)>& of_rank) {
  const Mesh mesh = make_mesh(run.config, run.world_size);
  const int64_t tensor_size = mesh.size(MeshAxis::tensor);
  const int64_t num_stages = mesh.size(MeshAxis::pipeline);
  const int64_t equal_ranks = mesh.num_data_context_ranks();
  WorldPlan world;
  world.written_bytes.resize(num_stages * tensor_size);
  world.on_host.resize(num_stages * tensor_size);
  for_each_stage(run, mesh, all_stages(num_stages), no_limit, [&](int64_t stage, PlannedStage planned) {
    world.choices.push_back(std::move(planned.choices));
    for (KindPlan& kind : planned.kinds) add_kind(world, kind, stage * tensor_size, equal_ranks);
    if (of_rank)
      for (KindPlan& kind : planned.kinds) of_rank(kind.rank, std::move(kind.plan));
  });
  return world;
}

std::vector<int64_t> nodes_of_ranks(int64_t world_size, int64_t ranks_per_node) {
  std::vector<int64_t> nodes(world_size, 0);
  for (int64_t rank = 0; rank < world_size && ranks_per_node > 0; ++rank) nodes[rank] = rank / ranks_per_node;
  return nodes;
}

HostMemoryUse fullest_host(const std::vector<MemoryPlan::ByClass>& on_host, const Mesh& mesh,
                           const std::vector<int64_t>& node_of_rank) {
  std::map<int64_t, HostMemoryUse> nodes;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const MeshPoint at = mesh.coordinates(rank);
    const int64_t kind = at[MeshAxis::pipeline] * mesh.size(MeshAxis::tensor) + at[MeshAxis::tensor];
    MemoryPlan::ByClass bytes = on_host[kind];
    if (!mesh.is_first_data_context_rank(rank))
      bytes[MemoryClass::samples] = 0;  // only the first of equal ranks writes texts
    nodes[node_of_rank[rank]].add(bytes);
  }
  HostMemoryUse fullest;
  for (const auto& [number, node] : nodes)
    if (node.total() > fullest.total()) fullest = node;
  return fullest;
}

RankBytes largest_rank_bytes(const PlanCase& run, int64_t first_stage, int64_t enough) {
  const RunConfig config = with_enough_micro_batches(run.config);
  std::vector<int64_t> stages =
      has_fixed_choices(config.memory) ? stages_of_peak(config) : all_stages(config.parallel.pipeline);
  const auto first = std::find(stages.begin(), stages.end(), first_stage);
  if (first != stages.end()) std::rotate(stages.begin(), first, stages.end());
  RankBytes bytes = bytes_of_stages({config, run.target, run.world_size}, stages, enough);
  fill_in_host_bytes(bytes, config.parallel, stages);
  return bytes;
}

RankBytes estimate_rank_bytes(const PlanCase& run) {
  const RunConfig config = with_micro_batches_of_peak(run.config);
  const std::vector<int64_t> stages = stages_of_peak(config);
  RankBytes bytes = bytes_of_stages({config, run.target, run.world_size}, stages, no_limit);
  fill_in_host_bytes(bytes, config.parallel, stages);
  return bytes;
}

}  // namespace gptrain::fit
