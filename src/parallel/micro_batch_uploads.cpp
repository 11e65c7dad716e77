#include "parallel/micro_batch_uploads.h"

#include <algorithm>

namespace gptrain::inline parallel {

void copy_micro_batch(Backend& backend, const MicroBatch& host, const MicroBatch& device,
                      const MicroBatchShape& shape) {
  backend.upload(device.tokens, host.tokens, shape.token_bytes());
  backend.upload(device.targets, host.targets, shape.token_bytes());
  backend.upload(device.sample_ids, host.sample_ids, shape.id_bytes());
  if (shape.with_documents) backend.upload(device.document_starts, host.document_starts, shape.document_bytes());
}

MicroBatchUploads::MicroBatchUploads(SideQueue& queue, std::byte* landing, const MicroBatchShape& shape)
    : queue_(queue), shape_(shape), landing_(MicroBatch::at(landing, shape)) {}

void MicroBatchUploads::upload(MicroBatchSource& source, const MicroBatch& device) {
  // Waits for the upload `num_valid` ago, which may read memory that next() reuses. Uploads end in order, so this also
  // holds if several sources take turns.
  const int64_t num_valid = std::min(source.num_valid(), most_retained);
  if (uploads_ >= num_valid) queue_.await_work(mark_of(uploads_ - num_valid));
  const MicroBatch& host = source.next();
  queue_.follow_ops(landing_is_free);
  queue_.queue_upload(landing_.tokens, host.tokens, shape_.token_bytes());
  queue_.queue_upload(landing_.targets, host.targets, shape_.token_bytes());
  queue_.queue_upload(landing_.sample_ids, host.sample_ids, shape_.id_bytes());
  if (shape_.with_documents)
    queue_.queue_upload(landing_.document_starts, host.document_starts, shape_.document_bytes());
  queue_.mark_work(mark_of(uploads_));
  queue_.ops_follow(mark_of(uploads_));
  queue_.copy_among_ops(device.tokens, landing_.tokens, shape_.bytes());
  queue_.mark_ops(landing_is_free);
  ++uploads_;
}

}  // namespace gptrain::parallel
