#include "train/batches.h"

#include <algorithm>

#include "step/step_design.h"

namespace gptrain::inline train {

Prefetcher read_ahead(const StepConfig& config, const Dataset& dataset, int64_t first_sample, DataRank data_rank,
                      PrefetchRing ring, std::byte* memory) {
  const int64_t micro = config.batch.micro;
  return {dataset,
          micro_batch_shape(config, data_rank.context_rank),
          first_sample + data_rank.rank * micro,
          data_rank.size * micro,
          memory,
          ring};
}

FirstSamples::FirstSamples(MicroBatchSource& source, int64_t samples, const StepConfig& config, DataRank data_rank)
    : source_(source),
      left_(samples - data_rank.rank * config.batch.micro),
      batch_(config.batch.micro),
      stride_(data_rank.size * config.batch.micro),
      sequence_rows_(micro_batch_shape(config).token_rows().length) {}

const MicroBatch& FirstSamples::next() {
  const MicroBatch& batch = source_.next();
  const int64_t counted = std::clamp<int64_t>(left_, 0, batch_);
  std::fill(batch.targets + counted * sequence_rows_, batch.targets + batch_ * sequence_rows_, -1);
  left_ -= stride_;
  return batch;
}

}  // namespace gptrain::train
