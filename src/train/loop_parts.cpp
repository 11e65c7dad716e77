#include "train/loop_parts.h"

#include <utility>

#include "step/checkpoint_forecast.h"

namespace gptrain::inline train {

LoopParts::LoopParts(const RunContext& context, const TrainOptions& options, const StopSignals& signals,
                     std::shared_ptr<const StepDesign> design)
    : start(choose_start(context.config, options,
                         checkpoint_bytes(*design->spec, context.config, context.groups.num_data_ranks()),
                         context.all(), context.world)),
      folder(context.config.run.out, start.lock.get()),
      stop(signals, folder, context.world.activity()),
      data(open_data(context.config, start, context.all(), context.world)),
      limits(measure_limits(context.backend, context.config.precision.compute, context.profiler != nullptr)),
      updates(make_update_resources(*design, context)),
      step(make_step(std::move(design), context, *updates)),
      reporter(context, folder, *step, limits, start.last_step),
      checkpoints(context, folder, *step, reporter, {data.tokenizer.record, data.record}),
      losses(context, folder, checkpoints, reporter, data.train),
      samples(context, folder, *step, reporter, data.tokenizer) {
  const Target& target = context.backend.target();
  rings = step->allocate_host(all_rings_bytes(context.config, target));
  validation.emplace(context, data.validation, data.tokenizer.tokenizer.get(), *step,
                     rings->data() + prefetch_ring_bytes(context.config, target), reporter, stop);
}

}  // namespace gptrain::train
