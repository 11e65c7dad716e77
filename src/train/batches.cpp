#include "train/batches.h"

#include <algorithm>

#include "base/error.h"
#include "step/step_design.h"

namespace gptrain::inline train {

PrefetchedBatches::PrefetchedBatches(const RunConfig& config, const Dataset& dataset, int64_t first_sample,
                                     DataPlace place, PrefetchRing ring, std::byte* memory)
    : prefetcher_(dataset, micro_batch_shape(config), first_sample + place.rank * config.batch.micro,
                  place.size * config.batch.micro, memory, ring) {}

const MicroBatch& PrefetchedBatches::next() {
  try {
    return prefetcher_.next();
  } catch (const Error& error) {
    if (fault_.empty()) fault_ = error.what();
    return prefetcher_.blank();
  }
}

FirstSamples::FirstSamples(MicroBatchSource& source, int64_t samples, const RunConfig& config, DataPlace place)
    : source_(source),
      left_(samples - place.rank * config.batch.micro),
      batch_(config.batch.micro),
      stride_(place.size * config.batch.micro),
      sequence_length_(config.model.sequence_length) {}

const MicroBatch& FirstSamples::next() {
  const MicroBatch& batch = source_.next();
  const int64_t counted = std::clamp<int64_t>(left_, 0, batch_);
  std::fill(batch.targets + counted * sequence_length_, batch.targets + batch_ * sequence_length_, -1);
  left_ -= stride_;
  return batch;
}

}  // namespace gptrain::train
