#include "train/plan_step.h"

#include <array>
#include <limits>

namespace gptrain {
namespace {

// Lets equal actions run once: the plan counts an action that it has seen as often as it comes.
class PlanObserver : public ActionObserver {
 public:
  PlanObserver(PlanBackend& backend, GroupTraffic& traffic, int32_t num_units)
      : backend_(backend), traffic_(traffic), head_(num_units - 1) {}

  bool before(const Action& action) override {
    key_ = key(action);
    const Entry& entry = seen_[key_];
    if (entry.seen) {
      backend_.add(entry.ops);
      add_traffic(entry.traffic);
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
    entry = {true, backend_.since(ops_before_), traffic_};
    subtract(entry.traffic, traffic_before_);
  }

 private:
  struct Entry {
    bool seen = false;
    OpTable ops{};
    GroupTraffic traffic{};
  };

  static void combine(GroupTraffic& to, const GroupTraffic& from, int64_t sign) {
    for (size_t group = 0; group < to.size(); ++group) {
      for (size_t i = 0; i < num_collectives; ++i) {
        to[group][i].calls += sign * from[group][i].calls;
        to[group][i].sent_bytes += sign * from[group][i].sent_bytes;
      }
    }
  }
  static void subtract(GroupTraffic& to, const GroupTraffic& from) { combine(to, from, -1); }
  void add_traffic(const GroupTraffic& from) { combine(traffic_, from, 1); }

  // Actions with equal keys run equal ops: blocks are alike, and the first micro-batch overwrites gradients where
  // others add.
  size_t key(const Action& action) const {
    const size_t unit = action.unit <= 0 ? 0 : (action.unit == head_ ? 2 : 1);
    const size_t first = action.micro_batch == 0 ? 1 : 0;
    return (static_cast<size_t>(action.kind) * 3 + unit) * 2 + first;
  }

  PlanBackend& backend_;
  GroupTraffic& traffic_;
  int32_t head_;
  size_t key_ = 0;
  OpTable ops_before_{};
  GroupTraffic traffic_before_{};
  std::array<Entry, static_cast<size_t>(num_action_kinds) * 6> seen_{};
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

StepPlan plan_step(const RunConfig& config, const Target& target, int64_t world_size, int64_t rank) {
  StepPlan plan;
  RankGroups groups(config, world_size, rank, plan.traffic);
  PlanBackend backend(target);
  MemoryPlan& arenas = plan.memory.arenas;
  arenas = arena_bytes(config, groups, target);
  // Room without end: the run itself tells how much it takes.
  arenas[MemoryClass::workspace] = std::numeric_limits<int64_t>::max() / 4;
  TrainingStep step(config, plan.memory, backend, groups);
  PlanObserver observer(backend, plan.traffic, static_cast<int32_t>(step.spec().units.size()));
  NoMicroBatches source;
  step.run(0, source, &observer);
  plan.spec = step.spec();
  plan.ops = backend.ops();
  plan.memory.frame_bytes = step.workspace().high_water_bytes();
  plan.memory.scratch_bytes = backend.scratch_bytes();
  arenas[MemoryClass::workspace] = align_up(plan.memory.scratch_bytes) + plan.memory.frame_bytes;
  return plan;
}

}  // namespace gptrain
