// Uploads of micro-batches to a device that has its own memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/micro_batch.h"
#include "ops/side_queue.h"

namespace gptrain::inline parallel {

// Copies one micro-batch to the device, in order with the ops.
void copy_micro_batch(Backend& backend, const MicroBatch& host, const MicroBatch& device, const MicroBatchShape& shape);

// Uploads in two copies, so that the next micro-batch arrives while one is computed. The first copy goes to a landing
// buffer, overlapped with the ops, once the micro-batch before has left the buffer. The second goes to the micro-batch
// that ops read, in order with the ops. The host waits only if the source is about to reuse memory that is still to be
// copied.
class MicroBatchUploads {
 public:
  // Borrows `queue` and `landing`, shape.bytes() of device memory.
  MicroBatchUploads(SideQueue& queue, std::byte* landing, const MicroBatchShape& shape);

  // Takes the source's next micro-batch and uploads it: ops called from now on find it in `device`. Called by the
  // backend's thread.
  void upload(MicroBatchSource& source, const MicroBatch& device);

  // Larger values of MicroBatchSource::num_valid() are treated as this one.
  static constexpr int64_t most_retained = SideQueue::num_marks / 2;

 private:
  static constexpr int landing_is_free = 0;  // mark of the ops that have copied the landing buffer's content
  static int mark_of(int64_t upload) { return static_cast<int>(upload % SideQueue::num_marks); }

  SideQueue& queue_;
  const MicroBatchShape shape_;
  const MicroBatch landing_;
  int64_t uploads_ = 0;
};

}  // namespace gptrain::parallel
