// What one micro-batch brings in from outside: tokens, targets, sample numbers and, where attention is masked by them,
// the starts of documents.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/record.h"

namespace gptrain {

// A view of memory of the caller (host or device), laid out back to back, each part at a multiple of 256 bytes.
struct MicroBatch {
  int32_t* tokens = nullptr;      // [B, T]
  int32_t* targets = nullptr;     // [B, T], negative: not counted
  int64_t* sample_ids = nullptr;  // [B], global sample numbers
  // [B, T] or null: the place in its sequence where a token's document begins (see AttentionMask)
  int32_t* document_starts = nullptr;

  static int64_t bytes(int64_t batch, int64_t sequence_length, bool with_documents = false) {
    return (with_documents ? 3 : 2) * token_bytes(batch, sequence_length) + id_bytes(batch);
  }

  static MicroBatch at(std::byte* memory, int64_t batch, int64_t sequence_length, bool with_documents = false) {
    const int64_t tokens = token_bytes(batch, sequence_length);
    std::byte* const documents = memory + 2 * tokens + id_bytes(batch);
    return {reinterpret_cast<int32_t*>(memory), reinterpret_cast<int32_t*>(memory + tokens),
            reinterpret_cast<int64_t*>(memory + 2 * tokens),
            with_documents ? reinterpret_cast<int32_t*>(documents) : nullptr};
  }

 private:
  static int64_t id_bytes(int64_t batch) { return align_up(batch * static_cast<int64_t>(sizeof(int64_t))); }
  static int64_t token_bytes(int64_t batch, int64_t sequence_length) {
    return align_up(batch * sequence_length * static_cast<int64_t>(sizeof(int32_t)));
  }
};

// Where a step gets its micro-batches, in order.
class MicroBatchSource {
 public:
  virtual ~MicroBatchSource() = default;
  // The next micro-batch, in host memory.
  virtual const MicroBatch& next() = 0;
  // How many of those that `next` returned last stay as they are, until it is called again: what copies that nobody
  // waits for may still read.
  virtual int64_t kept() const { return 1; }
};

}  // namespace gptrain
