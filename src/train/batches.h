// A rank's micro-batches of a dataset, read ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "config/run_config.h"
#include "data/dataset.h"
#include "data/prefetcher.h"
#include "model/micro_batch.h"

namespace gptrain::inline train {

// A rank's number among the ranks that share a batch.
struct DataPlace {
  int64_t rank = 0;
  int64_t size = 1;
};

// The data ranks take micro-batches in turns: micro-batch m of rank d of D holds the samples from
// first_sample + (m D + d) B on.
class PrefetchedBatches : public MicroBatchSource {
 public:
  // `memory` holds the ring; the caller owns it.
  PrefetchedBatches(const RunConfig& config, const Dataset& dataset, int64_t first_sample, DataPlace place,
                    PrefetchRing ring, std::byte* memory);

  // Returns a micro-batch without targets if it cannot be read, so that the other ranks' collectives still complete.
  const MicroBatch& next() override;
  // Returns the reason why a micro-batch could not be read; empty if all could. A step or evaluation with a fault must
  // not count.
  const std::string& fault() const { return fault_; }
  bool is_void() const override { return !fault_.empty(); }
  int64_t kept() const override { return prefetcher_.kept(); }
  double waited_seconds() const { return prefetcher_.waited_seconds(); }

 private:
  Prefetcher prefetcher_;
  std::string fault_;
};

// A source of which only the first `samples` samples count, for any micro-batch size and number of ranks. The targets
// of later samples are marked as not counted.
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

}  // namespace gptrain::train
