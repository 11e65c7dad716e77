// Which attention a GPU's library (cuDNN) serves, and how much memory it needs: decided from shapes alone, so that a
// plan made without the library agrees with the run. Everything else goes to the own kernel.
//
// Backward with fixed bits keeps the gradient of the scores, a T x T matrix of each query head, in its workspace. Without,
// it adds up dq there with atomics, in f32. The workspace is bounded by taking an op in pieces: some sequences, or some
// key/value heads of one sequence with the query heads that read them. No sum crosses pieces.
//
// A window is the library's diagonal band. Where AttentionMask gives documents room, each document is to the library a
// sequence of a ragged batch, by a table of lengths and offsets that a kernel writes: a piece of some sequences has
// room for max_documents times as many documents, and what is not needed of it is sequences of length 0. Backward keeps
// T x T gradients of the scores for each, as any document may be as long as a sequence. The own kernels compute what
// sequences of a piece have, that holds more documents, again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/ops.h"

namespace gptrain {

constexpr int64_t fused_attention_most_head_size = 128;
// The own kernels.
constexpr int64_t gpu_most_head_size = 256;
constexpr int64_t fused_attention_head_multiple = 8;
// cuDNN takes any length. But past a last tile of keys that is not full, some versions' backward computes e^-lse of
// keys that are not there: infinity for lse < -88, and from it NaN.
constexpr int64_t fused_attention_length_multiple = 128;

// Pieces of backward are as large as fit into the preferred size. A shape whose smallest piece exceeds the largest size
// is not taken. Both leave an eighth beside the scores' gradients of a piece whose sizes are powers of two.
constexpr int64_t fused_attention_preferred_bytes = int64_t{9} << 27;
constexpr int64_t fused_attention_most_bytes = int64_t{9} << 29;
// For what an algorithm wants beside its large buffers: counters, alignment. It is all that forward may use.
// (cuDNN 9.19 wants 256 bytes.)
constexpr int64_t fused_attention_overhead_bytes = int64_t{8} << 20;

// cuDNN makes plans for more sequences at once, and does not run them.
constexpr int64_t fused_attention_most_sequences = 65535;

// Part of an attention op: `batch` sequences, `kv_heads` key/value heads of each. Either all heads or one sequence.
struct AttentionPiece {
  int64_t batch, kv_heads;

  int64_t groups() const { return batch * kv_heads; }
};

// The largest piece of at most `most_groups` >= 1 key/value heads, over all its sequences, that divides the op evenly.
template <typename Op>
AttentionPiece fused_attention_piece(const Op& op, int64_t most_groups) {
  const auto divisor = [](int64_t n, int64_t most) {
    int64_t found = std::min(n, most);
    while (n % found != 0) --found;
    return found;
  };
  if (most_groups >= op.num_kv_heads) return {divisor(op.batch, most_groups / op.num_kv_heads), op.num_kv_heads};
  return {1, divisor(op.num_kv_heads, most_groups)};
}

// How many sequences the library sees of one of ours.
inline int64_t fused_attention_room(const AttentionMask& mask) {
  return mask.max_documents > 0 ? mask.max_documents : 1;
}

// The table of a piece that has room for so many documents: for each its first row and its length, and where it begins
// in each of the at most nine operands. All arrays have the size of one of 64-bit numbers, one more than documents.
constexpr int64_t document_operands = 9;

constexpr int64_t document_array_bytes(int64_t documents) {
  return ((documents + 1) * dtype_bytes(DType::i64) + 255) / 256 * 256;
}
constexpr int64_t document_piece_bytes(int64_t documents) {
  return (2 + document_operands) * document_array_bytes(documents);
}
// Of each sequence, whether its piece holds too many documents: 32-bit numbers before the pieces.
constexpr int64_t document_overflow_bytes(int64_t batch) { return (batch * dtype_bytes(DType::i32) + 255) / 256 * 256; }

// What backward keeps for each key/value head of a sequence: of each query head that reads it, the gradients of T x T
// scores in 16 bits, or without fixed bits dq in f32; T sums of d_o o in f32; and its share of dk and dv in 16 bits where
// there are several. Past the most bytes that a piece may have, one more than those.
inline int64_t fused_attention_group_bytes(const AttentionBackward& op) {
  const int64_t length = op.sequence_length, query_heads = op.num_heads / op.num_kv_heads;
  const int64_t scores = op.fixed_bits ? length * length * dtype_bytes(DType::bf16)
                                       : length * op.head_size * dtype_bytes(DType::f32);
  const int64_t sums = length * dtype_bytes(DType::f32);
  const int64_t shares = query_heads > 1 ? 2 * length * op.head_size * dtype_bytes(DType::bf16) : 0;
  const int64_t matrices = fused_attention_room(op.mask) * query_heads, each = scores + sums + shares;
  return each > fused_attention_most_bytes / matrices ? fused_attention_most_bytes + 1 : matrices * each;
}

// How many key/value heads, over all sequences, a piece has at most.
inline int64_t fused_attention_most_groups(const AttentionForward& op) {
  return std::max<int64_t>(1, fused_attention_most_sequences / fused_attention_room(op.mask)) * op.num_kv_heads;
}
inline int64_t fused_attention_most_groups(const AttentionBackward& op) {
  const int64_t room = fused_attention_preferred_bytes - fused_attention_overhead_bytes;
  return std::max<int64_t>(1, room / fused_attention_group_bytes(op));
}

inline int64_t fused_attention_bound(const AttentionForward&) { return fused_attention_overhead_bytes; }

inline int64_t fused_attention_bound(const AttentionBackward& op) {
  const AttentionPiece piece = fused_attention_piece(op, fused_attention_most_groups(op));
  return fused_attention_overhead_bytes + piece.groups() * fused_attention_group_bytes(op);
}

// Whether the library may serve the op: its shape, not where its operands lie.
template <typename Op>
bool fused_attention_shape(const Op& op) {
  return op.q.dtype != DType::f32 && op.dropout.p == 0 &&
         (op.mask.document_starts == nullptr || op.mask.max_documents > 0) &&
         op.mask.max_documents <= fused_attention_most_sequences && op.head_size <= fused_attention_most_head_size &&
         op.head_size % fused_attention_head_multiple == 0 &&
         op.sequence_length % fused_attention_length_multiple == 0 &&
         fused_attention_bound(op) <= fused_attention_most_bytes;
}

// What fused_attention_shape asks for, to users.
constexpr const char* fused_attention_rule =
    "a library wants 16 bits, no dropout, sequences in multiples of 128, heads of 8 to 128 in multiples of 8, and room "
    "for documents that 4.5 GiB of workspace hold";

// Bound of the library's workspace in bytes; 0 for a shape that it does not serve. At most the larger of
// fused_attention_preferred_bytes and one piece's need.
template <typename Op>
int64_t fused_attention_scratch_bytes(const Op& op) {
  return fused_attention_shape(op) ? fused_attention_bound(op) : 0;
}

// Bytes of the tables of all pieces. Pieces of several sequences need no more than as many of one.
template <typename Op>
int64_t fused_attention_table_bytes(const Op& op) {
  if (op.mask.max_documents == 0 || !fused_attention_shape(op)) return 0;
  return document_overflow_bytes(op.batch) + op.batch * document_piece_bytes(op.mask.max_documents);
}

}  // namespace gptrain
