#include "train/offload_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "parallel/make_stages.h"
#include "schedule/offload.h"
#include "train/plan_step.h"
#include "train/recompute_plan.h"

namespace gptrain {
namespace {

constexpr double host_link_bytes_per_second = 2.5e10;  // of PCIe 4.0 with 16 lanes, as measured: each way by itself
constexpr double share_of_rates = 0.6;                  // that ops reach of the nominal ones
constexpr double most_waited = 0.005;                  // of the passes' time, that copies still count as hidden
constexpr int64_t micro_batches_looked_at = 2;
constexpr int32_t micro_batch_timed = 1;

// The passes of a stage, with the times of their actions.
class HiddenBlocks {
 public:
  HiddenBlocks(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage) {
    RunConfig few = config;
    few.memory.offload_activations = no_offload;
    few.batch.global = config.batch.global / config.batch.accumulation * micro_batches_looked_at;
    few.batch.accumulation = micro_batches_looked_at;
    MeshPoint point;
    point[MeshAxis::pipeline] = stage;
    const StepPlan plan = plan_step(few, target, world_size, make_mesh(config, world_size).rank_of(point));
    options_ = plan.design->training->schedule.options;
    bytes_ = plan.design->training->bytes;
    // As many as all stages have in flight, and as many again.
    options_.micro_batches =
        static_cast<int32_t>(std::min<int64_t>(config.batch.accumulation, 2 * options_.stages.shape.chunks()));
    for (const LoggedAction& action : plan.log.actions) {
      if (action.kind > ActionKind::backward || action.micro_batch != micro_batch_timed) continue;
      seconds_[{action.kind, action.unit}] =
          nominal_pass_seconds(plan.log.blocks[static_cast<size_t>(action.block)], target);
    }
  }

  int64_t most() const {
    int64_t fits = 0;
    auto too_many = static_cast<int64_t>(offloaded_units(options_.stages, std::numeric_limits<int64_t>::max()).size()) + 1;
    while (too_many - fits > 1) {
      const int64_t between = fits + (too_many - fits) / 2;
      (hides(between) ? fits : too_many) = between;
    }
    return fits;
  }

 private:
  // Whether copies of so many blocks do. Passes run one after another: waits for other stages would leave more time.
  bool hides(int64_t count) const {
    ScheduleOptions options = options_;
    for (const int32_t unit : offloaded_units(options.stages, count)) options.units[static_cast<size_t>(unit)].offloaded = true;
    double now = 0, waited = 0;
    std::array<double, 2> lanes{};  // to the host, and back
    std::map<std::pair<int32_t, int32_t>, double> ends;
    for (const Action& action : training_schedule(options).actions) {
      const std::pair record(action.unit, action.micro_batch);
      switch (action.kind) {
        case ActionKind::offload:
        case ActionKind::fetch: {
          double& lane = lanes[action.kind == ActionKind::offload ? 0 : 1];
          const UnitTraits& traits = options.units[static_cast<size_t>(action.unit)];
          lane = std::max(lane, now) + nominal_copy_seconds(record_bytes(bytes_, traits, action.unit));
          ends[record] = lane;
          break;
        }
        case ActionKind::await_offloaded:
        case ActionKind::await_fetched:
          waited += std::max(ends[record] - now, 0.0);
          now = std::max(now, ends[record]);
          break;
        default:
          if (const auto found = seconds_.find({action.kind, action.unit}); found != seconds_.end()) now += found->second;
      }
    }
    return waited <= most_waited * now;
  }

  ScheduleOptions options_;
  BufferBytes bytes_;
  std::map<std::pair<ActionKind, int32_t>, double> seconds_;
};

}  // namespace

double nominal_pass_seconds(const EventBlock& events, const Target& target) {
  double seconds = 0;
  for (const Event& event : events) seconds += nominal_seconds(event, target);
  return seconds / share_of_rates;
}

double nominal_copy_seconds(int64_t bytes) { return static_cast<double>(bytes) / host_link_bytes_per_second; }

UnitChoices offload(const RunConfig& config, UnitChoices choices, int64_t count) {
  if (count == no_offload) return choices;
  for (int64_t stage = 0; stage < config.parallel.pipeline; ++stage) {
    const Stages stages = make_stages(config, stage, config.batch.accumulation);
    for (const int32_t unit : offloaded_units(stages, count == all_offload ? config.model.num_layers : count))
      choices[static_cast<size_t>(unit)].offloaded = true;
  }
  return choices;
}

int64_t hidden_blocks(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage) {
  if (target.kind != Target::Kind::gpu) return 0;
  return HiddenBlocks(config, target, world_size, stage).most();
}

}  // namespace gptrain
