#include "fit/micro_batches.h"

#include <utility>

#include "parallel/micro_batch_uploads.h"

namespace gptrain::inline fit {

RunConfig with_micro_batches(RunConfig config, int64_t micro_batches) {
  config.batch.global = config.batch.global / config.batch.accumulation * micro_batches;
  config.batch.accumulation = micro_batches;
  return config;
}

RunConfig with_few_micro_batches(RunConfig config) { return with_micro_batches(std::move(config), 2); }

RunConfig with_enough_micro_batches(RunConfig config) {
  constexpr int64_t enough = MicroBatchUploads::most_retained;  // uploads with their own memory
  if (config.parallel.pipeline > 1 || config.batch.accumulation <= enough) return config;
  return with_micro_batches(std::move(config), enough);
}

RunConfig with_micro_batches_of_peak(RunConfig config) {
  const int64_t most = 3 * config.parallel.pipeline;
  if (config.parallel.pipeline == 1 || config.parallel.pipeline_schedule == PipelineOrder::gpipe ||
      config.batch.accumulation <= most)
    return with_enough_micro_batches(std::move(config));
  return with_micro_batches(std::move(config), most);
}

}  // namespace gptrain::fit
