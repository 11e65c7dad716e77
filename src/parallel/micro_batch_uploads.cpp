#include "parallel/micro_batch_uploads.h"

#include <algorithm>

namespace gptrain {

MicroBatchUploads::MicroBatchUploads(SideQueue& queue, std::byte* landing, int64_t batch, int64_t sequence_length,
                                     bool with_documents)
    : queue_(queue),
      batch_(batch),
      sequence_length_(sequence_length),
      with_documents_(with_documents),
      landing_(MicroBatch::at(landing, batch, sequence_length, with_documents)) {}

void MicroBatchUploads::upload(MicroBatchSource& source, const MicroBatch& device) {
  // Copies end in the order in which they are queued. So this holds for a source that takes turns with others, too.
  const int64_t kept = std::min(source.kept(), most_kept);
  if (uploads_ >= kept) queue_.await_work(mark_of(uploads_ - kept));
  const MicroBatch& host = source.next();
  const int64_t token_bytes = batch_ * sequence_length_ * static_cast<int64_t>(sizeof(int32_t));
  queue_.follow_ops(landed);
  queue_.queue_upload(landing_.tokens, host.tokens, token_bytes);
  queue_.queue_upload(landing_.targets, host.targets, token_bytes);
  queue_.queue_upload(landing_.sample_ids, host.sample_ids, batch_ * static_cast<int64_t>(sizeof(int64_t)));
  if (with_documents_) queue_.queue_upload(landing_.document_starts, host.document_starts, token_bytes);
  queue_.mark_work(mark_of(uploads_));
  queue_.ops_follow(mark_of(uploads_));
  queue_.copy_among_ops(device.tokens, landing_.tokens, MicroBatch::bytes(batch_, sequence_length_, with_documents_));
  queue_.mark_ops(landed);
  ++uploads_;
}

}  // namespace gptrain
