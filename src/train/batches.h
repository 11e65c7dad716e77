// A rank's micro-batches of a dataset, read ahead.
#pragma once

#include <cstddef>
#include <cstdint>

#include "config/run_config.h"
#include "data/dataset.h"
#include "data/prefetcher.h"
#include "model/micro_batch.h"

namespace gptrain::inline train {

// A rank's number among the ranks that share a batch, and among those with the same samples.
struct DataRank {
  int64_t rank = 0;
  int64_t size = 1;
  int64_t context_rank = 0;
};

// Reads the micro-batches of a rank ahead. The data ranks take micro-batches in turns: micro-batch m of rank d of D
// holds the samples from first_sample + (m D + d) B on. `memory` holds the ring; the caller owns it.
Prefetcher read_ahead(const StepConfig& config, const Dataset& dataset, int64_t first_sample, DataRank data_rank,
                      PrefetchRing ring, std::byte* memory);

// A source of which only the first `samples` samples count, for any micro-batch size and number of ranks. The targets
// of later samples are marked as not counted.
class FirstSamples : public MicroBatchSource {
 public:
  FirstSamples(MicroBatchSource& source, int64_t samples, const StepConfig& config, DataRank data_rank);

  const MicroBatch& next() override;
  int64_t num_valid() const override { return source_.num_valid(); }

 private:
  MicroBatchSource& source_;
  int64_t left_;  // number of counted samples left, from this rank's next micro-batch on
  int64_t batch_, stride_;
  int64_t sequence_rows_;  // rows of a sequence on this rank
};

}  // namespace gptrain::train
