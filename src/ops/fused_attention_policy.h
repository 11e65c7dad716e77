// Policy for attention by a GPU's library (cuDNN): the ops that it serves, and its memory. Decided from shapes alone,
// so that a plan made without the library agrees with the run. All other ops run on gptrain's own kernels.
//
// Backward with fixed_bits stores the gradient of the scores, a T x T matrix for each query head, in its workspace;
// without, it sums dq there with atomics, in f32. To bound the workspace an op runs in pieces: some sequences, or some
// key/value heads of one sequence with the query heads that read them. No sum crosses pieces.
//
// A window is the library's diagonal band; patterns of several runs, capped scores, sinks and the largest score are not
// served. With AttentionMask::max_documents, each document is a sequence of a ragged batch to the library, described by
// a table of lengths and offsets that a kernel writes. A piece of n sequences has n * max_documents entries; unused
// ones are sequences of length 0. Backward has a T x T gradient of the scores for each entry, as a document may be as
// long as a sequence. If a piece holds more documents than entries, the own kernels compute its sequences again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/event.h"
#include "ops/ops.h"

namespace gptrain::inline ops {

constexpr int64_t fused_attention_most_head_size = 128;
// Bound of gptrain's own kernels.
constexpr int64_t gpu_most_head_size = 256;
constexpr int64_t fused_attention_head_multiple = 8;
// cuDNN accepts any length. But if the last tile of keys is not full, backward of some versions computes e^-lse of
// absent keys: infinity for lse < -88, and then NaN.
constexpr int64_t fused_attention_length_multiple = 128;

// Workspace of a piece of backward. Pieces are as large as fit into the preferred size. A shape whose smallest piece
// exceeds the most bytes is not served. Both are 9/8 of a power of two: sizes that are powers of two fill 8/8 with the
// scores' gradients.
constexpr int64_t fused_attention_preferred_bytes = int64_t{9} << 27;
constexpr int64_t fused_attention_most_bytes = int64_t{9} << 29;
// Allowance for an algorithm's counters and alignment beside its large buffers, and all that forward may use. (cuDNN
// 9.19 needs 256 bytes.)
constexpr int64_t fused_attention_overhead_bytes = int64_t{8} << 20;

// cuDNN builds plans for more sequences than this, but cannot run them.
constexpr int64_t fused_attention_most_sequences = 65535;

// Part of an attention op: `batch` sequences, `kv_heads` key/value heads of each. Either all heads or one sequence.
struct AttentionPiece {
  int64_t batch, kv_heads;

  int64_t groups() const { return batch * kv_heads; }
};

// RETURNS the largest piece of at most `most_groups` >= 1 key/value heads, over all its sequences, that divides the op
// evenly.
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

// RETURNS the number of sequences that the library gets for one sequence of the op.
inline int64_t fused_attention_matrices(const AttentionMask& mask) {
  return mask.max_documents > 0 ? mask.max_documents : 1;
}

// Table of documents of a piece: arrays of each document's first row, its length, and its offset in each of at
// most nine operands. Each array has room for documents + 1 numbers of 64 bits.
constexpr int64_t document_operands = 9;

constexpr int64_t document_array_bytes(int64_t documents) {
  return ((documents + 1) * dtype_bytes(DType::i64) + 255) / 256 * 256;
}
constexpr int64_t document_piece_bytes(int64_t documents) {
  return (2 + document_operands) * document_array_bytes(documents);
}
// RETURNS the bytes of the flags before the pieces: for each sequence a 32-bit number, whether its piece holds too many
// documents.
constexpr int64_t document_overflow_bytes(int64_t batch) { return (batch * dtype_bytes(DType::i32) + 255) / 256 * 256; }

// RETURNS the workspace of backward for each key/value head of a sequence, capped at fused_attention_most_bytes + 1.
// For each query head that reads it: the gradients of T x T scores in 16 bits, or without fixed_bits dq in f32; T sums
// of d_o o in f32; and, if there are several query heads, its contribution to dk and dv in 16 bits.
inline int64_t fused_attention_group_bytes(const AttentionBackward& op) {
  const int64_t length = op.sequence_length, query_heads = op.num_heads / op.num_kv_heads;
  const int64_t scores =
      op.fixed_bits ? length * length * dtype_bytes(DType::bf16) : length * op.head_size * dtype_bytes(DType::f32);
  const int64_t sums = length * dtype_bytes(DType::f32);
  const int64_t shares = query_heads > 1 ? 2 * length * op.head_size * dtype_bytes(DType::bf16) : 0;
  const int64_t matrices = fused_attention_matrices(op.mask) * query_heads, each = scores + sums + shares;
  return each > fused_attention_most_bytes / matrices ? fused_attention_most_bytes + 1 : matrices * each;
}

// RETURNS the largest number of key/value heads, over all sequences, of a piece.
inline int64_t fused_attention_most_groups(const AttentionForward& op) {
  return std::max<int64_t>(1, fused_attention_most_sequences / fused_attention_matrices(op.mask)) * op.num_kv_heads;
}
inline int64_t fused_attention_most_groups(const AttentionBackward& op) {
  const int64_t available_bytes = fused_attention_preferred_bytes - fused_attention_overhead_bytes;
  return std::max<int64_t>(1, available_bytes / fused_attention_group_bytes(op));
}

inline int64_t fused_attention_bound(const AttentionForward&) { return fused_attention_overhead_bytes; }

inline int64_t fused_attention_bound(const AttentionBackward& op) {
  const AttentionPiece piece = fused_attention_piece(op, fused_attention_most_groups(op));
  return fused_attention_overhead_bytes + piece.groups() * fused_attention_group_bytes(op);
}

// RETURNS why the library cannot serve the op, judged by its shape but not by the alignment of its operands.
template <typename Op>
OwnAttention refused_attention_shape(const Op& op) {
  if constexpr (std::is_same_v<Op, AttentionForward>) {
    if (op.largest.given()) return OwnAttention::largest_scores;
  }
  if (op.q.dtype == DType::f32) return OwnAttention::f32;
  if (op.dropout.p != 0) return OwnAttention::dropout;
  if (op.softcap != 0) return OwnAttention::softcap;
  if (op.sinks.given()) return OwnAttention::sinks;
  if (!op.mask.pattern.one_run()) return OwnAttention::pattern;
  if (op.mask.document_starts != nullptr && op.mask.max_documents == 0) return OwnAttention::documents;
  if (op.head_size > fused_attention_most_head_size || op.head_size % fused_attention_head_multiple != 0)
    return OwnAttention::head_size;
  if (op.sequence_length % fused_attention_length_multiple != 0) return OwnAttention::length;
  const bool is_too_large =
      op.mask.max_documents > fused_attention_most_sequences || fused_attention_bound(op) > fused_attention_most_bytes;
  return is_too_large ? OwnAttention::workspace : OwnAttention::no;
}

// RETURNS whether the library may serve the op, judged by its shape.
template <typename Op>
bool fused_attention_shape(const Op& op) {
  return refused_attention_shape(op) == OwnAttention::no;
}

// RETURNS whether the library has kernels for the op on devices of that compute capability, as far as is known without
// it: the table of cuda/README.md. Devices below 8.0, which are planned for only, count as having them.
inline bool fused_attention_device(const AttentionForward&, double compute_capability) {
  return compute_capability < 11;
}
inline bool fused_attention_device(const AttentionBackward& op, double compute_capability) {
  const bool has_fixed_bits = compute_capability < 8 || compute_capability >= 9 || op.mask.max_documents == 0;
  return compute_capability < 11 && (!op.fixed_bits || has_fixed_bits);
}

// RETURNS why gptrain's own kernels compute the op on a GPU.
template <typename Op>
OwnAttention own_attention(const Op& op, double compute_capability) {
  const OwnAttention shape = refused_attention_shape(op);
  if (shape != OwnAttention::no || fused_attention_device(op, compute_capability)) return shape;
  return compute_capability < 11 ? OwnAttention::fixed_bits : OwnAttention::device;
}

// Rule of fused_attention_shape, for messages to users.
constexpr const char* fused_attention_rule =
    "a library wants 16 bits, no dropout, no softcap, sinks or largest score, a dense or banded pattern, sequences in "
    "multiples of "
    "128, heads "
    "of 8 to 128 in multiples of 8, and room for documents that 4.5 GiB of workspace hold";

// RETURNS a bound of the library's workspace in bytes: at most the larger of fused_attention_preferred_bytes and the
// smallest piece's; 0 for a shape that it does not serve.
template <typename Op>
int64_t fused_attention_scratch_bytes(const Op& op) {
  return fused_attention_shape(op) ? fused_attention_bound(op) : 0;
}

// RETURNS the bytes of the tables of all pieces, as if every piece had one sequence: pieces of several need no more.
template <typename Op>
int64_t fused_attention_table_bytes(const Op& op) {
  if (op.mask.max_documents == 0 || !fused_attention_shape(op)) return 0;
  return document_overflow_bytes(op.batch) + op.batch * document_piece_bytes(op.mask.max_documents);
}

}  // namespace gptrain::ops
