// Reads micro-batches of a dataset ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "data/dataset.h"
#include "model/micro_batch.h"

namespace gptrain::inline data {

// Sizes of the ring of micro-batches that are read ahead.
struct PrefetchRing {
  // Number of the latest returned micro-batches that must stay valid (in use, or being copied to a device): at least 1,
  // and less than `depth` unless both are 1.
  int num_valid;
  int depth;  // micro-batches in the ring
};

// Reads micro-batches ahead on one background thread (nice 19) into a ring in the caller's memory. Micro-batch k holds
// samples first_sample + k stride ... + B - 1: a stride of B reads all samples; with several ranks that take turns, a
// larger stride reads one rank's. Does not allocate after construction.
class Prefetcher : public MicroBatchSource {
 public:
  // Returns the bytes of `memory`: the ring, and if the rank has parts of sequences, those of a whole sequence.
  static int64_t bytes(const MicroBatchShape& shape, PrefetchRing ring);
  // Borrows the dataset and `memory`, and starts to read. THROWS Error(machine) if the thread cannot start.
  Prefetcher(const Dataset& dataset, const MicroBatchShape& shape, int64_t first_sample, int64_t stride,
             std::byte* memory, PrefetchRing ring);
  ~Prefetcher() override;

  // Returns the next micro-batch; the one returned `num_valid` calls before is reused. If it cannot be read, fault()
  // says why, and the micro-batch has only tokens of id 0 and no targets, so that other ranks' collectives still
  // complete. Adds the waiting time to waited_seconds().
  const MicroBatch& next() override;
  // Returns the reason why a micro-batch could not be read; empty if all could. A step or evaluation with a fault must
  // not count.
  const std::string& fault() const;
  bool is_void() const override { return !fault().empty(); }
  int64_t num_valid() const override;
  double waited_seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
