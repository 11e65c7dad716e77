// The documents of an attention op as a library's ragged batch: their lengths, and their starts in every operand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/fused_attention_policy.h"
#include "ops/ops.h"
#include "stream.h"

namespace gptrain::inline cuda {

// Index of an operand in the table.
enum class DocumentOperand : uint8_t { q, k, v, o, lse, d_o, dq, dk, dv };
static_assert(static_cast<int64_t>(DocumentOperand::dv) + 1 == document_operands);

// A view of fused_attention_table_bytes(op) bytes of device memory. A piece is several consecutive sequences of the op;
// its documents are those of its sequences, in order. A document never continues in the next sequence.
class DocumentTable {
 public:
  DocumentTable(std::byte* memory, int64_t batch, int64_t sequences_of_piece, int64_t max_documents)
      : memory_(memory),
        batch_(batch),
        sequences_(sequences_of_piece),
        documents_(sequences_of_piece * max_documents) {}

  int64_t num_pieces() const { return batch_ / sequences_; }
  int64_t sequences() const { return sequences_; }  // sequences of a piece
  int64_t documents() const { return documents_; }  // documents that fit in a piece

  // [batch]: 1 if the sequence's piece has more documents than fit, else 0.
  int32_t* overflow() const { return reinterpret_cast<int32_t*>(memory_); }
  // [documents() + 1]: first row of each document in the piece; past the last document, the number of rows.
  int32_t* first_rows(int64_t piece) const { return reinterpret_cast<int32_t*>(array(piece, 0)); }
  // [documents()]: tokens of each document; 0 past the last. If a piece has too many documents, the first ones.
  int32_t* lengths(int64_t piece) const { return reinterpret_cast<int32_t*>(array(piece, 1)); }
  // [documents() + 1]: elements from the operand's first row in the piece (for lse: from the first head of its first
  // sequence) to each document; past the last document, to the end of the piece.
  int64_t* offsets(int64_t piece, DocumentOperand operand) const {
    return reinterpret_cast<int64_t*>(array(piece, 2 + static_cast<int64_t>(operand)));
  }

 private:
  std::byte* array(int64_t piece, int64_t index) const {
    return memory_ + document_overflow_bytes(batch_) + piece * document_piece_bytes(documents_) +
           index * document_array_bytes(documents_);
  }

  std::byte* memory_;
  int64_t batch_, sequences_, documents_;
};

// Fills the table from op.mask.document_starts, with offsets for the op's operands.
void list_documents(const DocumentTable& table, const AttentionForward& op, Stream stream);
void list_documents(const DocumentTable& table, const AttentionBackward& op, Stream stream);

}  // namespace gptrain::cuda
