// The interface through which a step takes its micro-batches.
#pragma once

#include <cstdint>

namespace gptrain::inline model {

struct MicroBatch;

// Source of a rank's micro-batches, step after step, without end. A rank calls from one thread.
class MicroBatchSource {
 public:
  virtual ~MicroBatchSource() = default;
  // RETURNS the next micro-batch, in host memory of the source. May wait for data. Does not throw if they cannot be
  // read (see is_void).
  virtual const MicroBatch& next() = 0;
  // RETURNS how many of the micro-batches that `next` returned last remain unchanged until its next call, so that
  // queued copies may still read them.
  virtual int64_t num_valid() const { return 1; }
  // RETURNS true once a micro-batch could not be read. From then on `next` returns micro-batches without targets, so
  // that collectives with other ranks still complete; a step that used one must not count.
  virtual bool is_void() const { return false; }
};

}  // namespace gptrain::model
