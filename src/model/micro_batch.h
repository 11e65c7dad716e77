// What one micro-batch brings in from outside: tokens, targets, sample numbers and, where attention is masked by them,
// the starts of documents.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/record.h"

namespace gptrain {

// The sizes of a micro-batch, and of its parts in memory: back to back, each at a multiple of 256 bytes.
struct MicroBatchShape {
  int64_t batch = 0;            // B, sequences
  int64_t sequence_length = 0;  // T
  bool with_documents = false;

  int64_t rows() const { return batch * sequence_length; }
  // Of tokens, targets, or starts of documents.
  int64_t token_bytes() const { return rows() * static_cast<int64_t>(sizeof(int32_t)); }
  int64_t id_bytes() const { return batch * static_cast<int64_t>(sizeof(int64_t)); }
  int64_t bytes() const { return (with_documents ? 3 : 2) * align_up(token_bytes()) + align_up(id_bytes()); }
};

// A view of memory of the caller (host or device).
struct MicroBatch {
  int32_t* tokens = nullptr;      // [B, T]
  int32_t* targets = nullptr;     // [B, T], negative: not counted
  int64_t* sample_ids = nullptr;  // [B], global sample numbers
  // [B, T] or null: the place in its sequence where a token's document begins (see AttentionMask)
  int32_t* document_starts = nullptr;

  // In `shape.bytes()` bytes.
  static MicroBatch at(std::byte* memory, const MicroBatchShape& shape) {
    const int64_t tokens = align_up(shape.token_bytes());
    std::byte* const documents = memory + 2 * tokens + align_up(shape.id_bytes());
    return {reinterpret_cast<int32_t*>(memory), reinterpret_cast<int32_t*>(memory + tokens),
            reinterpret_cast<int64_t*>(memory + 2 * tokens),
            shape.with_documents ? reinterpret_cast<int32_t*>(documents) : nullptr};
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
  // Whether one of them held no data: they could not be read, and nothing that is computed with them counts.
  virtual bool is_void() const { return false; }
};

}  // namespace gptrain
