// A rank's micro-batches of a dataset, read ahead.
#pragma once

#include <cstddef>
#include <cstdint>

#include "config/run_config.h"
#include "data/dataset.h"
#include "data/prefetcher.h"
#include "model/micro_batch.h"

namespace gptrain {

// One of the ranks that share a batch among them.
struct DataPlace {
  int64_t rank = 0;
  int64_t size = 1;
};

// Reads a rank's micro-batches ahead into the caller's memory. The data ranks take micro-batches in turns: micro-batch m
// of rank d of D holds the samples from first_sample + (m D + d) B on.
Prefetcher read_ahead(const RunConfig& config, const Dataset& dataset, int64_t first_sample, DataPlace place,
                      PrefetchRing ring, std::byte* memory);

// Only the first `samples` samples of a source count, whatever the micro-batch and the number of ranks: the targets of
// the others are marked as not counted.
class FirstSamples : public MicroBatchSource {
 public:
  FirstSamples(MicroBatchSource& source, int64_t samples, const RunConfig& config, DataPlace place);

  const MicroBatch& next() override;
  int64_t kept() const override { return source_.kept(); }

 private:
  MicroBatchSource& source_;
  int64_t left_;  // samples that count from the next micro-batch of this rank on
  int64_t batch_, stride_, sequence_length_;
};

}  // namespace gptrain
