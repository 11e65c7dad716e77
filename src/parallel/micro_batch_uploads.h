// Micro-batches on their way to a device whose memory is apart from the host's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/micro_batch.h"
#include "ops/side_queue.h"

namespace gptrain {

// Copies one among the ops.
void copy_micro_batch(Backend& backend, const MicroBatch& host, const MicroBatch& device, const MicroBatchShape& shape);

// Each one is copied beside the ops to a place of its own, as soon as the one before has left that, and from there
// among the ops to where they read it: while a micro-batch is computed, the next one arrives. The host waits only where
// a source is about to take back what has not been copied yet. Borrows everything.
class MicroBatchUploads {
 public:
  // `landing`: shape.bytes() of the device's memory.
  MicroBatchUploads(SideQueue& queue, std::byte* landing, const MicroBatchShape& shape);

  // The source's next micro-batch is what ops that are called from now on find in `device`.
  void upload(MicroBatchSource& source, const MicroBatch& device);

  // The most of a source's MicroBatchSource::kept that is of use.
  static constexpr int64_t most_kept = SideQueue::num_marks / 2;

 private:
  static constexpr int landed = 0;  // mark of ops: the landing place is free
  static int mark_of(int64_t upload) { return static_cast<int>(upload % SideQueue::num_marks); }

  SideQueue& queue_;
  const MicroBatchShape shape_;
  const MicroBatch landing_;
  int64_t uploads_ = 0;
};

}  // namespace gptrain
