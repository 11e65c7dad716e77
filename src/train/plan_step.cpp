#include "train/plan_step.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace gptrain {
namespace {

// Runs equal actions once: the plan runs the first of them and counts it for each of the others.
class PlanObserver : public ActionObserver {
 public:
  PlanObserver(PlanBackend& backend, LaneTraffic& traffic, const StepDesign& design)
      : backend_(backend), traffic_(traffic), design_(design) {}

  bool before(const Action& action) override {
    key_ = key(action);
    if (const auto known = seen_.find(key_); known != seen_.end()) {
      ++known->second.repeats;
      return false;
    }
    ops_before_ = backend_.ops();
    traffic_before_ = traffic_;
    backend_.set_recomputing(action.kind == ActionKind::recompute);
    return true;
  }

  void after(const Action&) override {
    backend_.set_recomputing(false);
    Entry& entry = seen_[key_];
    entry = {backend_.since(ops_before_), traffic_, 0};
    add(entry.traffic, traffic_before_, -1);
  }

  // Counts the repetitions, all at once: a step may have a million actions.
  void finish() {
    for (const auto& [key, entry] : seen_) {
      backend_.add(entry.ops, entry.repeats);
      add(traffic_, entry.traffic, entry.repeats);
    }
  }

 private:
  struct Entry {
    OpTable ops{};
    LaneTraffic traffic{};
    int64_t repeats = 0;  // beside the first
  };

  static void add(LaneTraffic& to, const LaneTraffic& from, int64_t times) {
    for (size_t lane = 0; lane < to.size(); ++lane) {
      for (size_t group = 0; group < num_group_kinds; ++group) {
        for (size_t i = 0; i < num_operations; ++i) {
          to[lane][group][i].calls += times * from[lane][group][i].calls;
          to[lane][group][i].sent_bytes += times * from[lane][group][i].sent_bytes;
        }
      }
    }
  }

  // Actions with equal keys run equal ops: of units of equal designs; the first micro-batch overwrites gradients where
  // others add, and the first action to name copies of weights makes them.
  using Key = std::tuple<ActionKind, int32_t, bool, bool>;
  Key key(const Action& action) const {
    const Schedule& schedule = design_.training->schedule;
    const int32_t unit = action.unit < 0 ? -1 : design_.first_alike[static_cast<size_t>(action.unit)];
    const int32_t prepared = action[Operand::prepared_weights];
    const bool prepares = prepared >= 0 && &action == &schedule.actions[static_cast<size_t>(
                                                          schedule.buffers[static_cast<size_t>(prepared)].first)];
    return {action.kind, unit, action.micro_batch == 0, prepares};
  }

  PlanBackend& backend_;
  LaneTraffic& traffic_;
  const StepDesign& design_;
  Key key_;
  OpTable ops_before_{};
  LaneTraffic traffic_before_{};
  std::map<Key, Entry> seen_;
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

// Of a stage with `stages`.
StagePlan stage_plan(const Stages& stages, int64_t rank) {
  StagePlan plan{.rank = rank, .memory = {}};
  bool first = true;
  for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk) {
    if (stages.stage_of_chunk(chunk) != stages.stage) continue;
    const int32_t begin = std::max(stages.first_unit(chunk) - 1, 0);
    const int32_t end = std::min(stages.end_unit(chunk) - 1, stages.num_units() - 2);
    if (std::exchange(first, false)) plan.first_layer = begin;
    plan.num_layers += std::max(end - begin, 0);
  }
  return plan;
}

RankKind kind_of(const RunConfig& config, TensorPlace place) {
  const int64_t rows = vocabulary_rows(config.model.vocab_size, place.size);
  return {place.rank == 0, std::clamp<int64_t>(config.model.vocab_size - place.rank * rows, 0, rows),
          place.rank % kv_replicas(config.model, place.size) == 0};
}

}  // namespace

WorldPlan plan_world(const RunConfig& config, const Target& target, int64_t world_size) {
  const Mesh mesh = make_mesh(config, world_size);
  const int64_t tensor_size = mesh.size(MeshAxis::tensor);
  WorldPlan world;
  struct Planned {
    StepMemory memory;
    OpTable ops{};
  };
  const int64_t num_stages = mesh.size(MeshAxis::pipeline);
  std::map<RankKind, Planned> plans;       // of a stage
  std::shared_ptr<const Program> program;  // of the stage's first rank
  for (int64_t i = 0; i < num_stages * tensor_size; ++i) {
    const int64_t tensor_rank = i % tensor_size;
    const int64_t rank = i / tensor_size * (world_size / num_stages) + tensor_rank;
    if (tensor_rank == 0) plans.clear();
    const auto [entry, is_new] = plans.try_emplace(kind_of(config, {tensor_size, tensor_rank}));
    Planned& plan = entry->second;
    if (is_new) {
      const StepPlan step = plan_step(config, target, world_size, rank, tensor_rank == 0 ? nullptr : program);
      plan = {step.memory(), step.ops};
      if (tensor_rank == 0) {
        program = step.design->training;
        world.stages.push_back(stage_plan(step.design->stages, rank));
      }
      if (rank == 0) {
        world.spec = step.design->spec;
        world.traffic = step.traffic;
        world.warnings = step.warnings;
      }
    }
    StagePlan& stage = world.stages.back();
    if (tensor_rank == 0 || plan.memory.arenas.total() > stage.memory.arenas.total()) {
      stage.rank = rank;
      stage.memory = plan.memory;
    }
    if (rank == 0 || plan.memory.arenas.total() > world.largest.arenas.total()) {
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

StepPlan plan_step(const RunConfig& config, const Target& target, int64_t world_size, int64_t rank,
                   const std::shared_ptr<const Program>& like) {
  StepPlan plan;
  RankGroups groups(config, world_size, rank, plan.traffic);
  PlanBackend backend(target);
  const auto design = std::make_shared<StepDesign>(design_step(config, target, groups, like));
  plan.design = design;
  StepMemory& memory = design->memory;
  // The arena has no limit: running the pass shows how much it takes.
  memory.arenas[MemoryClass::workspace] = std::numeric_limits<int64_t>::max() / 4;
  TrainingStep step(design, backend, groups);
  PlanObserver observer(backend, plan.traffic, *design);
  NoMicroBatches source;
  step.run(0, source, &observer);
  observer.finish();
  plan.ops = backend.ops();
  // Evaluation has no dropout. So attention may use a library that does not support it, and other scratch space.
  const LaneTraffic traffic = plan.traffic;
  step.evaluate(1, source);
  plan.traffic = traffic;
  plan.warnings = backend.take_warnings();
  memory.frame_bytes = step.workspace().high_water_bytes();
  memory.scratch_bytes = backend.scratch_bytes();
  memory.arenas[MemoryClass::workspace] = align_up(memory.scratch_bytes) + memory.frame_bytes;
  return plan;
}

}  // namespace gptrain
