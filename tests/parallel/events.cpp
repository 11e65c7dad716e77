#include "events.h"

#include <fmt/format.h>

#include "comm/world.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "step/plan_step.h"
#include "step/step_profiler.h"
#include "step/update_resources.h"

namespace gptrain::testing {
namespace {

std::string in_words(const Event& event) {
  return fmt::format("{} {} {} [{}] lane {} group {} of {}, {} {} {} {}", static_cast<int>(event.kind),
                     event.beside_ops ? "beside" : "among", event.name, event.shape, event.channel.lane,
                     event.channel.group, event.ranks, static_cast<double>(event.model_flops),
                     static_cast<double>(event.executed_flops), event.bytes_moved, event.sent_bytes);
}

}  // namespace

EventWords in_words(const StepLog& log) {
  EventWords parts;
  const auto add = [&](const EventBlock& block) {
    std::vector<std::string>& part = parts.emplace_back();
    for (const Event& event : block) {
      if (event.kind != Event::Kind::wait) part.push_back(in_words(event));
    }
  };
  add(log.before);
  for (const LoggedAction& action : log.actions) add(log.blocks[static_cast<size_t>(action.block)]);
  add(log.after);
  return parts;
}

std::vector<RankEvents> events_on_ranks(const RunConfig& config, int64_t world_size,
                                        const std::function<std::unique_ptr<Backend>()>& make_device) {
  std::vector<RankEvents> ranks(static_cast<size_t>(world_size));
  run_local_ranks(static_cast<int>(world_size), [&](World& world) {
    RankGroups groups(config, world);
    const auto device = make_device();
    groups.use_memory_of(*device, false, config.comm.timeout_seconds);
    StepProfiler profiler(*device, groups);
    const StepPlan plan = plan_rank({config, device->target(), world.size()}, world.rank());
    const UpdateResources updates(*plan.design, *device, world.rank());
    TrainingStep step(plan.design, profiler.backend(), groups, updates.device());
    step.initialize();
    RandomBatches batches(config, 0, groups);
    step.run(1e-3, batches);
    profiler.start();
    step.run(1e-3, batches, &profiler);
    ranks[static_cast<size_t>(world.rank())] = {
        in_words(plan.log), profiler.finish(2, 0, {config.precision.compute, 1e12, 1e10}, step.design().stages)};
  });
  return ranks;
}

}  // namespace gptrain::testing
