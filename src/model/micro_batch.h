// Input of one micro-batch: tokens, targets, sample numbers and, if attention is masked by documents, their starts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/token_rows.h"
#include "model/micro_batch_source.h"
#include "model/record.h"

namespace gptrain::inline model {

// Sizes of a micro-batch and of its parts, which lie one after the other in memory at multiples of 256 bytes.
struct MicroBatchShape {
  int64_t batch = 0;            // B, sequences
  int64_t sequence_length = 0;  // T
  bool with_documents = false;
  ContextRank context = {};  // the rank on the context axis: it has a part of the tokens of each sequence

  TokenRows token_rows() const { return TokenRows::part(sequence_length, context); }
  // RETURNS N, the rows of the rank's tokens.
  int64_t rows() const { return batch * token_rows().length; }
  // RETURNS the bytes of the tokens, which are those of the targets, too.
  int64_t token_bytes() const { return rows() * static_cast<int64_t>(sizeof(int32_t)); }
  // RETURNS the bytes of the documents' starts, which every rank has of whole sequences.
  int64_t document_bytes() const { return batch * sequence_length * static_cast<int64_t>(sizeof(int32_t)); }
  // RETURNS the bytes of the sample numbers.
  int64_t id_bytes() const { return batch * static_cast<int64_t>(sizeof(int64_t)); }
  // RETURNS the bytes of a micro-batch with all its parts.
  int64_t bytes() const {
    return 2 * align_up(token_bytes()) + align_up(id_bytes()) + (with_documents ? align_up(document_bytes()) : 0);
  }
};

// View of the caller's memory (host or device).
struct MicroBatch {
  int32_t* tokens = nullptr;      // [N]
  int32_t* targets = nullptr;     // [N], negative: not counted in the loss
  int64_t* sample_ids = nullptr;  // [B], global sample numbers
  // [B, T]: position in its sequence where a token's document begins (see AttentionMask); null: no document mask.
  int32_t* document_starts = nullptr;

  // RETURNS a view of `shape.bytes()` bytes of memory, which is aligned for int64_t.
  static MicroBatch at(std::byte* memory, const MicroBatchShape& shape) {
    const int64_t tokens = align_up(shape.token_bytes());
    std::byte* const documents = memory + 2 * tokens + align_up(shape.id_bytes());
    return {reinterpret_cast<int32_t*>(memory), reinterpret_cast<int32_t*>(memory + tokens),
            reinterpret_cast<int64_t*>(memory + 2 * tokens),
            shape.with_documents ? reinterpret_cast<int32_t*>(documents) : nullptr};
  }
};

}  // namespace gptrain::model
