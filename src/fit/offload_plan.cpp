#include "fit/offload_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "fit/fixed_choices.h"
#include "fit/micro_batches.h"
#include "fit/nominal_times.h"
#include "ops/side_queue.h"
#include "schedule/offload.h"

namespace gptrain::inline fit {
namespace {

constexpr double most_waited = 0.005;  // copies that cost a smaller share of the passes' time count as hidden
// Each pass begins at most one copy, and a queue has a limited number of marks for copies in flight.
constexpr size_t most_passes_ahead = SideQueue::num_marks / 2;

// The passes of a stage, with the times of their actions.
class HiddenBlocks {
 public:
  HiddenBlocks(const PlanCase& run, int32_t stage) : target_(run.target) {
    const auto& [config, target, world_size] = run;
    RunConfig few = with_few_micro_batches(config);
    few.memory.offload = offload::none;
    const StepPlan plan =
        plan_fixed({few, target, world_size}, make_mesh(config, world_size).first_rank_of_stage(stage));
    options_ = plan.design->training->schedule.options;
    bytes_ = plan.design->training->bytes;
    // Twice as many micro-batches as all stages can have in flight.
    options_.micro_batches =
        static_cast<int32_t>(std::min<int64_t>(config.batch.accumulation, 2 * options_.stages.shape.chunks()));
    seconds_ = nominal_pass_seconds(plan, target);
  }

  int64_t most() const {
    int64_t fits = 0;
    auto too_many = static_cast<int64_t>(spread_evenly(options_.stages, options_.stages.num_layers()).units.size()) + 1;
    while (too_many - fits > 1) {
      const int64_t between = fits + (too_many - fits) / 2;
      (hides(between) ? fits : too_many) = between;
    }
    return fits;
  }

 private:
  bool hides(int64_t count) const {
    ScheduleOptions options = options_;
    const EvenOffload even = spread_evenly(options.stages, count);
    for (const int32_t unit : even.units) options.units[unit].offload = even.offload;
    const PlayedPasses played = play_passes(training_schedule(options), bytes_, target_, [this](const Action& action) {
      const auto found = seconds_.find({action.kind, action.unit});
      return found == seconds_.end() ? 0 : found->second;
    });
    return played.waited <= most_waited * played.seconds;
  }

  Target target_;
  ScheduleOptions options_;
  BufferBytes bytes_;
  PassSeconds seconds_;
};

}  // namespace

PlayedPasses play_passes(const Schedule& schedule, const BufferBytes& bytes, const Target& target,
                         const ActionSeconds& seconds) {
  PlayedPasses played;
  std::array<double, 2> lanes{};  // seconds at which each copy lane is free: to the host, and back
  std::map<std::pair<int32_t, int32_t>, double> ends;
  for (const Action& action : schedule.actions) {
    const std::pair record(action.unit, action.micro_batch);
    switch (action.kind) {
      case ActionKind::offload:
      case ActionKind::fetch: {
        double& lane = lanes[action.kind == ActionKind::offload ? 0 : 1];
        lane = std::max(lane, played.seconds) +
               nominal_copy_seconds(record_bytes(bytes, schedule.traits(action.unit), action.unit), target);
        ends[record] = lane;
        break;
      }
      case ActionKind::await_offloaded:
      case ActionKind::await_fetched: {
        const double wait = std::max(ends[record] - played.seconds, 0.0);
        played.waited += wait;
        played.seconds += wait;
        break;
      }
      default:
        played.seconds += seconds(action);
    }
  }
  return played;
}

void time_copies(UnitChoices& choices, ScheduleOptions options, const BufferBytes& bytes, const Target& target,
                 const ActionSeconds& seconds) {
  std::vector<double> copies(options.units.size(), 0);
  for (size_t unit = 0; unit < copies.size(); ++unit) {
    UnitTraits& traits = options.units[unit];
    if (traits.offload.any())
      copies[unit] = nominal_copy_seconds(record_bytes(bytes, traits, static_cast<int32_t>(unit)), target);
    traits.offload = {};
  }
  options.micro_batches = 1;
  const Schedule schedule = training_schedule(options);
  const std::vector<size_t> starts = first_actions_of_passes(schedule.actions);
  std::vector<double> begins;  // seconds at which each pass begins; the last element is the end of the last pass
  double now = 0;
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    if (begins.size() < starts.size() && starts[begins.size()] == i) begins.push_back(now);
    now += seconds(schedule.actions[i]);
  }
  begins.push_back(now);
  const auto unit_of = [&](size_t pass) { return static_cast<size_t>(schedule.actions[starts[pass]].unit); };
  const auto goes_back = [&](size_t pass) { return is_backward(schedule.actions[starts[pass]].kind); };

  double lane = 0;
  for (size_t pass = 0; pass < starts.size(); ++pass) {
    if (goes_back(pass) || copies[unit_of(pass)] == 0) continue;
    lane = std::max(lane, begins[pass + 1]) + copies[unit_of(pass)];
    size_t end = pass + 2;
    while (end + 1 < begins.size() && begins[end] < lane && end - pass - 1 < most_passes_ahead) ++end;
    choices[unit_of(pass)].offload.leaves_for = static_cast<int32_t>(end - pass - 1);
  }
  // Copies back are planned from the last pass that reads a record to the first, each right before the next.
  std::vector<size_t> first_reads(copies.size(), 0);
  for (size_t pass = starts.size(); pass-- > 0;)
    if (goes_back(pass)) first_reads[unit_of(pass)] = pass;
  lane = now;
  for (size_t pass = starts.size(); pass-- > 1;) {
    const size_t unit = unit_of(pass);
    if (!goes_back(pass) || first_reads[unit] != pass || copies[unit] == 0) continue;
    lane = std::min(lane, begins[pass]) - copies[unit];
    size_t begin = pass - 1;
    while (begin > 0 && begins[begin] > lane && pass - begin < most_passes_ahead) --begin;
    choices[unit].offload.comes_ahead = static_cast<int32_t>(pass - begin);
  }
}

int64_t hidden_blocks(const PlanCase& run, int32_t stage) {
  return run.target.kind == Target::Kind::gpu ? HiddenBlocks(run, stage).most() : 0;
}

}  // namespace gptrain::fit
