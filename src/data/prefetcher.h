// Micro-batches of a dataset, read ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "data/dataset.h"
#include "model/micro_batch.h"

namespace gptrain {

// The ring into which micro-batches are read ahead, in micro-batches.
struct PrefetchRing {
  int kept;   // that are in use, or on their way to a device: of those that were returned last; less than depth, or 1
  int depth;  // all
};

// Reads micro-batches ahead on one background thread (nice 19) into a ring in the caller's memory, `depth` times
// shape.bytes(). Micro-batch k holds samples first_sample + k stride ... + B - 1: with a stride
// of B all samples, with more those of one of several ranks that take turns. No allocation after the constructor.
class Prefetcher : public MicroBatchSource {
 public:
  Prefetcher(const Dataset& dataset, const MicroBatchShape& shape, int64_t first_sample, int64_t stride,
             std::byte* memory, PrefetchRing ring);
  ~Prefetcher() override;

  // The next micro-batch; the one returned `kept` calls before is given back for reuse. Rethrows what the reader threw.
  // Adds the time spent waiting to waited_seconds().
  const MicroBatch& next() override;
  int64_t kept() const override;
  double waited_seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
