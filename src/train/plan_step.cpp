#include "train/plan_step.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "ops/plan/plan_backend.h"
#include "parallel/micro_batch_uploads.h"
#include "report/checkpoint_forecast.h"
#include "train/device.h"
#include "train/inference.h"
#include "train/recompute_plan.h"
#include "train/samples.h"

namespace gptrain {
namespace {

// Runs equal actions once: the others have the block of events that the first of them wrote.
class PlanObserver : public ActionObserver {
 public:
  PlanObserver(EventLog& log, const StepDesign& design)
      : log_(log), design_(design), block_of_(4 * num_action_kinds * (design.first_alike.size() + 1), -1) {
    step_.stages = design.stages;
    step_.actions.reserve(design.training->schedule.actions.size());
  }

  bool before(const Action& action) override {
    if (step_.actions.empty()) step_.before = log_.take(log_.end());
    int32_t& block = block_of_[key(action)];
    const bool is_new = block < 0;
    if (is_new) block = static_cast<int32_t>(step_.blocks.size());
    step_.actions.push_back({action.kind, action.micro_batch, action.unit, block});
    log_.set_recomputing(is_again(action.kind));
    return is_new;
  }

  void after(const Action&) override {
    log_.set_recomputing(false);
    step_.blocks.push_back(log_.take(log_.end()));
  }

  // Of the whole step, when that is over.
  StepLog finish() {
    log_.stop();
    step_.after = log_.take(log_.end());
    return std::move(step_);
  }

 private:
  // Actions with equal keys run equal ops: of units of equal designs; the first micro-batch overwrites gradients where
  // others add, and the first action to name copies of weights makes them.
  size_t key(const Action& action) const {
    const Schedule& schedule = design_.training->schedule;
    // What is copied of a unit is its own affair: of equal ones some may be run again.
    const bool is_own = action.unit < 0 || copies_record(action.kind);
    const int32_t unit = is_own ? action.unit : design_.first_alike[static_cast<size_t>(action.unit)];
    const int32_t prepared = action[Operand::prepared_weights];
    const bool prepares = prepared >= 0 && &action == &schedule.actions[static_cast<size_t>(
                                                          schedule.buffers[static_cast<size_t>(prepared)].first)];
    const auto of_kind = static_cast<size_t>(action.kind) * (design_.first_alike.size() + 1) +
                         static_cast<size_t>(unit + 1);
    return of_kind * 4 + (action.micro_batch == 0 ? 2 : 0) + (prepares ? 1 : 0);
  }

  EventLog& log_;
  const StepDesign& design_;
  StepLog step_;
  std::vector<int32_t> block_of_;  // by key; -1: none yet
};

class NoMicroBatches : public MicroBatchSource {
 public:
  const MicroBatch& next() override { return none_; }

 private:
  MicroBatch none_;
};

}  // namespace

OpTotals StepPlan::total() const {
  OpTotals sum;
  for (const OpTotals& op : ops) sum += op;
  return sum;
}

namespace {

// Tensor ranks with equal kinds have equal plans: what differs is the slice of the vocabulary, the first rank's biases
// and positions, and whether the keys and values are another rank's as well.
using RankKind = std::tuple<bool, int64_t, bool>;

// The texts that a run writes, on the host's CPU: of the ranks that hold the same weights, the first writes.
void add_samples(const RunConfig& config, const Target& target, RankGroups& groups, StepMemory& memory) {
  if (config.run.sample_every_steps == 0 || groups.copy_rank() > 0) return;
  Target host;
  host.num_threads = target.num_threads;
  MemoryPlan samples;
  samples.on(host_place(target))[static_cast<size_t>(MemoryClass::samples)] =
      Inference::bytes(config, host, groups, most_tokens_of_sample(config));
  memory.outside += samples;
  memory.arenas += samples;
}

// Of a stage with `stages`.
StagePlan stage_plan(const Stages& stages, int64_t rank) {
  StagePlan plan{.rank = rank, .memory = {}};
  for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk) {
    if (stages.stage_of_chunk(chunk) != stages.stage) continue;
    const int32_t begin = std::max(stages.first_unit(chunk) - 1, 0);
    const int32_t end = std::min(stages.end_unit(chunk) - 1, stages.num_units() - 2);
    plan.num_layers += std::max(end - begin, 0);
  }
  int64_t in_flight = 0;
  const std::shared_ptr<const PassLists> passes = passes_of(*stages.schedule, stages.shape);
  for (const Pass& pass : (*passes)[static_cast<size_t>(stages.stage)]) {
    if (pass.kind == PassKind::forward) ++in_flight;
    if (pass.kind == PassKind::backward || pass.kind == PassKind::backward_weight) --in_flight;
    plan.in_flight = std::max(plan.in_flight, in_flight);
  }
  return plan;
}

RankKind kind_of(const RunConfig& config, TensorPlace place) {
  const int64_t rows = vocabulary_rows(config.model.vocab_size, place.size);
  return {place.rank == 0, std::clamp<int64_t>(config.model.vocab_size - place.rank * rows, 0, rows),
          place.rank % kv_replicas(config.model, place.size) == 0};
}

int64_t written_bytes(const TrainingStep& step, const RunConfig& config) {
  const StateColumns& columns = step.parameters().columns();
  int64_t bytes = 0;
  for (const StatePiece& piece : step.parameters().state(true)) {
    const TensorSpec& tensor = step.spec().tensors[static_cast<size_t>(piece.tensor)];
    bytes += piece.count() * weight_bytes(tensor, config.precision);
    for (const StateColumn& column : columns)
      bytes += has_values(column, tensor) ? piece.column_bytes(column) : 0;
  }
  return bytes;
}

}  // namespace

WorldPlan plan_world(const RunConfig& config, const Target& target, int64_t world_size,
                     const std::function<void(int64_t, StepPlan)>& of_rank) {
  const Mesh mesh = make_mesh(config, world_size);
  const int64_t tensor_size = mesh.size(MeshAxis::tensor);
  WorldPlan world;
  struct Planned {
    StepMemory memory;
    OpTable ops{};
    int64_t written_bytes = 0;
  };
  const int64_t num_stages = mesh.size(MeshAxis::pipeline);
  std::map<RankKind, Planned> plans;       // of a stage
  UnitChoices choices;                     // likewise
  std::shared_ptr<const Program> program;  // of the stage's first rank
  for (int64_t i = 0; i < num_stages * tensor_size; ++i) {
    const int64_t tensor_rank = i % tensor_size;
    const int64_t rank = mesh.first_rank_of_stage(i / tensor_size, tensor_rank);
    if (tensor_rank == 0) {
      plans.clear();
      choices = recompute_choices(config, target, world_size, static_cast<int32_t>(i / tensor_size));
      world.choices.push_back(choices);
    }
    const auto [entry, is_new] = plans.try_emplace(kind_of(config, {tensor_size, tensor_rank}));
    Planned& plan = entry->second;
    if (is_new) {
      StepPlan step =
          plan_step(config, target, world_size, rank, tensor_rank == 0 ? nullptr : program, &choices);
      plan = {step.memory(), step.ops, step.written_bytes};
      if (tensor_rank == 0) {
        program = step.design->training;
        world.stages.push_back(stage_plan(step.design->stages, rank));
        for (int32_t unit = 0; unit < program->schedule.num_units(); ++unit)
          world.stages.back().num_offloaded += step.design->stages.runs(unit) && program->schedule.traits(unit).offload.any();
      }
      if (rank == 0) {
        world.spec = step.design->spec;
        world.traffic = step.traffic;
        world.warnings = step.warnings;
      }
      if (of_rank) of_rank(rank, std::move(step));
    }
    world.written_bytes.push_back(plan.written_bytes);
    world.on_host.push_back(plan.memory.arenas.on(MemoryPlace::host));
    StagePlan& stage = world.stages.back();
    if (tensor_rank == 0 || plan.memory.arenas.total() > stage.memory.arenas.total()) {
      stage.rank = rank;
      stage.memory = plan.memory;
    }
    const int64_t more = plan.memory.arenas.total() - world.largest.arenas.total();
    if (rank == 0 || more > 0 || (more == 0 && rank < world.largest_rank)) {
      world.largest_rank = rank;
      world.largest = plan.memory;
    }
    const auto times = static_cast<Flops>(mesh.size(MeshAxis::data));
    for (size_t op = 0; op < num_ops; ++op) {
      world.ops[op] += {plan.ops[op].calls * mesh.size(MeshAxis::data), plan.ops[op].model_flops * times,
                        plan.ops[op].executed_flops * times, plan.ops[op].bytes_moved * times};
    }
  }
  return world;
}

RunConfig with_micro_batches(RunConfig config, int64_t micro_batches) {
  config.batch.global = config.batch.global / config.batch.accumulation * micro_batches;
  config.batch.accumulation = micro_batches;
  return config;
}

RunConfig with_few_micro_batches(RunConfig config) { return with_micro_batches(std::move(config), 2); }

RunConfig with_enough_micro_batches(RunConfig config) {
  constexpr int64_t enough = MicroBatchUploads::most_kept;  // of which memory is taken, whatever else comes behind
  if (config.parallel.pipeline > 1 || config.batch.accumulation <= enough) return config;
  return with_micro_batches(std::move(config), enough);
}

std::vector<int64_t> nodes_of_ranks(int64_t world_size, int64_t ranks_per_node) {
  std::vector<int64_t> nodes(static_cast<size_t>(world_size), 0);
  for (int64_t rank = 0; rank < world_size && ranks_per_node > 0; ++rank)
    nodes[static_cast<size_t>(rank)] = rank / ranks_per_node;
  return nodes;
}

HostMemoryUse fullest_host(const std::vector<MemoryPlan::ByClass>& on_host, const Mesh& mesh,
                           const std::vector<int64_t>& node_of_rank) {
  std::map<int64_t, HostMemoryUse> nodes;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const MeshPoint at = mesh.coordinates(rank);
    const int64_t kind = at[MeshAxis::pipeline] * mesh.size(MeshAxis::tensor) + at[MeshAxis::tensor];
    MemoryPlan::ByClass bytes = on_host[static_cast<size_t>(kind)];
    if (at[MeshAxis::data] > 0) bytes[static_cast<size_t>(MemoryClass::samples)] = 0;  // the first data rank writes texts
    nodes[node_of_rank[static_cast<size_t>(rank)]].add(bytes);
  }
  HostMemoryUse fullest;
  for (const auto& [number, node] : nodes)
    if (node.total() > fullest.total()) fullest = node;
  return fullest;
}

RankBytes largest_rank_bytes(const RunConfig& whole, const Target& target, int64_t world_size, int64_t first_stage,
                             int64_t enough) {
  const RunConfig config = with_enough_micro_batches(whole);
  const Mesh mesh = make_mesh(config, world_size);
  const int64_t tensor_size = mesh.size(MeshAxis::tensor);
  const int64_t num_stages = mesh.size(MeshAxis::pipeline);
  RankBytes most;
  most.on_host.resize(static_cast<size_t>(num_stages * tensor_size));
  for (int64_t i = 0; i < num_stages; ++i) {
    std::map<RankKind, MemoryPlan::ByClass> on_host;  // of those that are planned
    std::shared_ptr<const Program> program;  // of the stage's first rank
    const auto stage = static_cast<int32_t>((first_stage + i) % num_stages);
    const UnitChoices choices = recompute_choices(config, target, world_size, stage);
    for (int64_t tensor_rank = 0; tensor_rank < tensor_size; ++tensor_rank) {
      const auto [entry, is_new] = on_host.try_emplace(kind_of(config, {tensor_size, tensor_rank}));
      if (is_new) {
        const int64_t rank = mesh.first_rank_of_stage(stage, tensor_rank);
        const StepPlan plan = plan_step(config, target, world_size, rank, program, &choices);
        if (tensor_rank == 0) program = plan.design->training;
        most.on_device = std::max(most.on_device, plan.memory().arenas.total());
        if (most.on_device > enough) return most;
        entry->second = plan.memory().arenas.on(MemoryPlace::host);
      }
      most.on_host[static_cast<size_t>(stage * tensor_size + tensor_rank)] = entry->second;
    }
  }
  return most;
}

namespace {

int32_t stage_of_rank(const RunConfig& config, int64_t world_size, int64_t rank) {
  return make_mesh(config, world_size).stage_of(rank);
}

}  // namespace

StepPlan plan_step(const RunConfig& config, const Target& target, int64_t world_size, int64_t rank,
                   const std::shared_ptr<const Program>& like, const UnitChoices* given) {
  UnitChoices made;
  if (given == nullptr) made = recompute_choices(config, target, world_size, stage_of_rank(config, world_size, rank));
  StepPlan plan;
  EventLog log;
  RankGroups groups(config, world_size, rank);
  groups.set_log(&log);
  PlanBackend backend(target, &log);
  const auto design = std::make_shared<StepDesign>(design_step(config, target, groups, like, given != nullptr ? given : &made));
  plan.design = design;
  StepMemory& memory = design->memory;
  // The arena has no limit: running the pass shows how much it takes.
  memory.arenas[MemoryClass::workspace] = std::numeric_limits<int64_t>::max() / 4;
  TrainingStep step(design, backend, groups);
  PlanObserver observer(log, *design);
  NoMicroBatches source;
  log.start();
  step.run(0, source, &observer);
  plan.log = observer.finish();
  plan.ops = op_table(plan.log);
  plan.traffic = lane_traffic(plan.log);
  // Evaluation has no dropout. So attention may use a library that does not support it, and other scratch space.
  step.evaluate(1, source);
  plan.warnings = backend.take_warnings();
  if (const std::string useless = useless_copies_warning(config, target); !useless.empty()) plan.warnings += useless + '\n';
  plan.written_bytes = written_bytes(step, config);
  memory.frame_bytes = step.workspace().high_water_bytes();
  memory.scratch_bytes = backend.scratch_bytes();
  memory.arenas[MemoryClass::workspace] = align_up(memory.scratch_bytes) + memory.frame_bytes;
  add_samples(config, target, groups, memory);
  return plan;
}

}  // namespace gptrain
