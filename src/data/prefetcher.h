// Reads micro-batches of a dataset ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "data/dataset.h"
#include "model/micro_batch.h"

namespace gptrain::inline data {

// Sizes of the ring of micro-batches that are read ahead.
struct PrefetchRing {
  int kept;   // last returned micro-batches that must stay valid (in use, or being copied to a device); < depth, or 1
  int depth;  // micro-batches in the ring
};

// Reads micro-batches ahead on one background thread (nice 19) into a ring in the caller's memory, of `depth` times
// shape.bytes(). Micro-batch k holds samples first_sample + k stride ... + B - 1: a stride of B reads all samples; with
// several ranks that take turns, a larger stride reads one rank's. Does not allocate after construction.
class Prefetcher : public MicroBatchSource {
 public:
  Prefetcher(const Dataset& dataset, const MicroBatchShape& shape, int64_t first_sample, int64_t stride,
             std::byte* memory, PrefetchRing ring);
  ~Prefetcher() override;

  // Returns the next micro-batch; the one returned `kept` calls before is reused. Rethrows the reader's exception. Adds
  // the waiting time to waited_seconds().
  const MicroBatch& next() override;
  // Returns a micro-batch of tokens 0 without targets in place of the one that cannot be read. REQUIRES: next() has
  // thrown.
  const MicroBatch& blank();
  int64_t kept() const override;
  double waited_seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
