#include "step/plan_step.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "ops/plan/plan_backend.h"
#include "schedule/offload.h"
#include "step/checkpoint_forecast.h"
#include "step/inference.h"

namespace gptrain::inline step {
namespace {

// Runs only the first of equal actions. The others refer to its block of events.
class PlanObserver : public ActionObserver {
 public:
  PlanObserver(EventLog& log, const StepDesign& design, const Program& program)
      : log_(log),
        design_(design),
        program_(program),
        block_of_(keys_of_unit * num_action_kinds * (design.first_equal_unit.size() + 1), -1) {
    step_.stages = design.stages;
    step_.actions.reserve(program.schedule.actions.size());
  }

  bool before(const Action& action) override {
    if (step_.actions.empty()) step_.before = log_.take(log_.end());
    int32_t& block = block_of_[key(action)];
    const bool is_new = block < 0;
    if (is_new) block = static_cast<int32_t>(step_.blocks.size());
    step_.actions.push_back({action.kind, action.micro_batch, action.unit, block});
    log_.set_recomputing(is_recomputation(action.kind));
    return is_new;
  }

  void after(const Action&) override {
    log_.set_recomputing(false);
    step_.blocks.push_back(log_.take(log_.end()));
  }

  // Returns the log of the whole step. Call once, at its end.
  StepLog finish() {
    log_.stop();
    step_.after = log_.take(log_.end());
    return std::move(step_);
  }

 private:
  // Returns a number that is equal for actions that run equal ops: those of units of equal design. The first
  // micro-batch differs, as it overwrites gradients to which others add, and so does the first action that reads
  // prepared weights, which prepares them. After the last one, the squares of gradients that are away are added up.
  size_t key(const Action& action) const {
    const Schedule& schedule = program_.schedule;
    // Copies to and from the host differ between units of equal design, as some of them may be recomputed.
    const bool is_own = action.unit < 0 || copies_record(action.kind);
    const int32_t unit = is_own ? action.unit : design_.first_equal_unit[action.unit];
    const int32_t prepared = action[Operand::prepared_weights];
    const bool prepares = prepared >= 0 && &action == &schedule.actions[schedule.buffers[prepared].first];
    const auto of_kind =
        static_cast<size_t>(action.kind) * (design_.first_equal_unit.size() + 1) + static_cast<size_t>(unit + 1);
    const bool measures = design_.sharding.gradients_away && action.kind == ActionKind::await_gradients &&
                          action.micro_batch + 1 == schedule.options.micro_batches;
    // Updates of equal units differ if the state of some is away.
    const std::vector<MemoryPlace>& places = design_.choices.optimizer_state;
    const bool is_home =
        action.kind == ActionKind::update && !places.empty() && places[action.unit] == MemoryPlace::device;
    return of_kind * keys_of_unit + 16 * static_cast<size_t>(action.phase) + (is_home ? 8 : 0) + (measures ? 4 : 0) +
           (action.micro_batch == 0 ? 2 : 0) + (prepares ? 1 : 0);
  }

  static constexpr size_t keys_of_unit = 48;  // keys of a unit's actions of one kind, with three phases

  EventLog& log_;
  const StepDesign& design_;
  const Program& program_;
  StepLog step_;
  std::vector<int32_t> block_of_;  // by key: index of the block; -1: none yet
};

class NoMicroBatches : public MicroBatchSource {
 public:
  const MicroBatch& next() override { return none_; }

 private:
  MicroBatch none_;
};

// Adds the memory for the sample texts of a run, which the host's CPU computes. Only the first of the ranks with the
// same weights writes texts.
void add_samples(const RunConfig& config, const Target& target, RankGroups& groups, StepMemory& memory) {
  if (config.run.sample_every_steps == 0 || groups.data_rank() > 0) return;
  Target host;
  host.num_threads = target.num_threads;
  RankGroups whole(with_whole_experts(config), groups.mesh().world_size(), groups.rank());
  MemoryPlan samples;
  samples.on(host_place(target))[MemoryClass::samples] =
      Inference::bytes(config, host, whole, most_tokens_of_sample(config.run));
  memory.outside += samples;
  memory.arenas += samples;
}

int64_t written_bytes(const TrainingStep& step, const StepConfig& config) {
  const StateColumns& columns = step.parameters().columns();
  int64_t bytes = 0;
  for (const StateSlice& piece : step.parameters().state(true)) {
    const TensorSpec& tensor = step.spec().tensors[piece.tensor];
    bytes += piece.count() * weight_bytes(tensor, config.precision);
    for (const StateColumn& column : columns) bytes += has_values(column, tensor) ? piece.column_bytes(column) : 0;
  }
  for (const StateSlice& piece : step.written_residuals()) bytes += piece.count() * dtype_bytes(DType::f32);
  return bytes;
}

}  // namespace

OpTotals StepPlan::total() const {
  OpTotals sum;
  for (const OpTotals& op : ops) sum += op;
  return sum;
}

StepPlan plan_step(const PlanCase& run, const StepChoices& choices, int64_t rank,
                   const std::shared_ptr<const Program>& like) {
  const auto& [config, target, world_size] = run;
  StepPlan plan;
  EventLog log;
  RankGroups groups(config, world_size, rank);
  groups.set_log(&log);
  PlanBackend backend(target, &log), update_backend(update_target(config.memory, target), &log);
  const auto design = std::make_shared<StepDesign>(design_step(config, target, groups, choices, like));
  plan.design = design;
  StepMemory& memory = design->memory;
  // Give the workspace no limit: its size is only known when the step has run.
  memory.arenas[MemoryClass::workspace] = std::numeric_limits<int64_t>::max() / 4;
  const bool has_own_backend = choices.updates_on_host || choices.keeps_state_away();
  const UpdateDevice updates{.backend = has_own_backend ? &update_backend : nullptr};
  NoMicroBatches source;
  const auto play = [&](TrainingStep& step, size_t number) {
    PlanObserver observer(log, *design, *design->programs[number].program);
    step.use_program(number);
    log.start();
    step.run(0, source, &observer);
    return observer.finish();
  };
  // Earlier programs count with their memory and traffic only.
  const size_t main = design->programs.size() - 1;
  for (size_t number = 0; number < main; ++number) {
    TrainingStep step(design, backend, groups, updates);
    plan.other_traffic.push_back({design->programs[number].name, lane_traffic(play(step, number))});
    memory.frame_bytes = std::max(memory.frame_bytes, step.workspace().high_water_bytes());
  }
  TrainingStep step(design, backend, groups, updates);
  plan.log = play(step, main);
  plan.log.landed_units = step.parameters().state_layout().most_landed();
  plan.ops = op_table(plan.log);
  plan.traffic = lane_traffic(plan.log);
  // Evaluation has no dropout, so its attention may use a library that does not support dropout, with other scratch.
  step.evaluate(1, source);
  plan.warnings = backend.take_warnings();
  if (!choices.warning.empty()) plan.warnings += choices.warning + '\n';
  plan.written_bytes = written_bytes(step, config);
  memory.frame_bytes = std::max(memory.frame_bytes, step.workspace().high_water_bytes());
  memory.scratch_bytes = backend.scratch_bytes();
  memory.update_scratch_bytes = update_backend.scratch_bytes();
  memory.arenas[MemoryClass::workspace] = align_up(memory.scratch_bytes) + memory.frame_bytes;
  memory.arenas.on(place_of_updates(choices, target))[MemoryClass::workspace] += align_up(memory.update_scratch_bytes);
  add_samples(config, target, groups, memory);
  return plan;
}

}  // namespace gptrain::step
