// Scratch memory of each op on a GPU, in bytes; 0 for most. The footprints report these sizes on any machine, the plan
// reserves them, and the CUDA backend's kernels lay out their scratch within them. If a size depends on how a kernel
// divides its work, the division is fixed here, so that sums have the same order on every device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/fused_attention_policy.h"
#include "ops/key_tiles.h"
#include "ops/ops.h"

namespace gptrain::inline ops {

template <typename Op>
constexpr int64_t gpu_scratch_bytes(const Op&) {
  return 0;
}

// Number of blocks of rows in NormBackward; each writes partial sums for gamma and beta. A block has a thread for every
// eight columns. 132 multiprocessors with at least 768 threads each keep enough memory accesses in flight; blocks of
// rows that registers hold have at most 1,024 threads on one, so that all run at a time with 64 registers a thread.
constexpr int64_t gpu_norm_most_blocks = 132 * 8;
constexpr int64_t gpu_norm_blocks(int64_t rows, int64_t cols) {
  return std::min(rows, std::min(gpu_norm_most_blocks, 132 * std::max<int64_t>((6144 + cols - 1) / cols, 2)));
}

inline int64_t gpu_scratch_bytes(const NormBackward& op) {
  const int64_t sums = op.beta_sums.given() ? 2 : 1;
  return gpu_norm_blocks(op.x.rows, op.x.cols) * sums * op.x.cols * dtype_bytes(DType::f32);
}

// SquaredNorm cuts segments into chunks of this many elements and writes an f64 sum of each.
constexpr int64_t gpu_norm_chunk = 1 << 14;

constexpr int64_t gpu_norm_chunks_bound(int64_t elements, int64_t num_segments) {
  return elements / gpu_norm_chunk + num_segments;
}

inline int64_t gpu_scratch_bytes(const SquaredNorm& op) {
  return gpu_norm_chunks_bound(op.gradients.cols, op.num_segments) * dtype_bytes(DType::f64);
}

// TensorNorms has the same chunks, with two sums each. One block adds up a chunk, and later one block adds up the
// chunks of a tensor. The block's lanes take four elements, or one chunk, in turn and add their own up; `sum_of_lanes`
// then adds up the lanes.
constexpr int gpu_norm_lanes = 256, gpu_norm_pack = 4;

// Returns the sum of a block's lanes in the order of its kernels: within each warp by halves, then warp after warp.
// Overwrites the values. Always inlined, as kernels of the CPU call it.
[[gnu::always_inline]] inline double sum_of_lanes(double (&of_lanes)[gpu_norm_lanes]) {
  constexpr int warp = 32;
  double total = 0;
  for (int first = 0; first < gpu_norm_lanes; first += warp) {
    double* const values = of_lanes + first;
    for (int half = warp / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) values[lane] += values[lane + half];
    total += values[0];
  }
  return total;
}

template <typename Op>
int64_t gpu_scratch_bytes(const TensorNorms<Op>& op) {
  return 2 * gpu_norm_chunks_bound(op.update.gradients.cols, op.update.num_segments) * dtype_bytes(DType::f64);
}

// EmbeddingBackward sorts the rows by token and adds each token's rows in pieces, which end at every 128th sorted row.
// Scratch: a 64-bit key per row, as input and as output of a pass of the sort, and a row of f32 sums for each piece
// that is not its token's first.
constexpr int64_t gpu_token_piece = 128;

inline int64_t gpu_scratch_bytes(const EmbeddingBackward& op) {
  return 2 * op.dx.rows * dtype_bytes(DType::i64) + op.dx.rows / gpu_token_piece * op.dx.cols * dtype_bytes(DType::f32);
}

// Largest number of blocks of rows in QueryKeyBackward. Each writes a partial sum for one gamma: first the queries',
// then, after these are added up, the keys'.
constexpr int64_t gpu_query_key_blocks = 1056;

inline int64_t gpu_scratch_bytes(const QueryKeyBackward& op) {
  const int64_t blocks = op.dq.rows < gpu_query_key_blocks ? op.dq.rows : gpu_query_key_blocks;
  return op.q_gamma.given() ? blocks * op.head_size * dtype_bytes(DType::f32) : 0;
}

// Largest workspace of a library's matrix product; algorithms that need more are not used. cuBLASLt recommends 32 MiB
// on Hopper. Twice that holds the partial sums of a 768 x 3072 weight gradient whose depth is split in seven, so that
// its 72 tiles fill the device.
constexpr int64_t gpu_product_workspace_bytes = int64_t{64} << 20;

// After the workspace lies an aligned copy of the bias, in y's dtype, for the library.
inline int64_t gpu_scratch_bytes(const LinearForward& op) {
  return gpu_product_workspace_bytes + (op.bias.given() ? op.bias.cols * dtype_bytes(op.y.dtype) : 0);
}

constexpr int64_t gpu_scratch_bytes(const LinearBackwardInput&) { return gpu_product_workspace_bytes; }

// A sum over rows is cut into at most 128 chunks of at least 64 rows, each of which writes an f32 partial sum of every
// column.
constexpr int64_t gpu_column_sum_chunk(int64_t rows) { return std::max<int64_t>(64, (rows + 127) / 128); }

constexpr int64_t gpu_column_sum_bytes(int64_t rows, int64_t cols) {
  const int64_t chunk = gpu_column_sum_chunk(rows);
  return (rows + chunk - 1) / chunk * cols * dtype_bytes(DType::f32);
}

// RETURNS the offset in scratch of the bias' gradient that a library's epilogue computes, before it is added to d_bias.
// The memory before it holds the product's workspace and, if a separate kernel sums the bias' gradient after the
// product, that kernel's partial sums.
inline int64_t gpu_bias_gradient_offset(const LinearBackwardWeight& op) {
  constexpr int64_t alignment = 256;
  const int64_t sums = op.d_bias.given() ? gpu_column_sum_bytes(op.dy.rows, op.dy.cols) : 0;
  return (std::max(sums, gpu_product_workspace_bytes) + alignment - 1) / alignment * alignment;
}

inline int64_t gpu_scratch_bytes(const LinearBackwardWeight& op) {
  return gpu_bias_gradient_offset(op) + op.d_bias.bytes();
}

// FP8 copies are written by tiles of this many rows; each tile writes an f32 partial of its columns' sums.
constexpr int64_t gpu_quantize_tile = 128;
constexpr int64_t gpu_quantize_row_tiles(int64_t rows) { return (rows + gpu_quantize_tile - 1) / gpu_quantize_tile; }

inline int64_t gpu_fp8_scratch_bytes(const Fp8Copies& to, int64_t rows, int64_t cols) {
  return to.column_sums.given() ? gpu_quantize_row_tiles(rows) * cols * dtype_bytes(DType::f32) : 0;
}

inline int64_t gpu_scratch_bytes(const Quantize& op) { return gpu_fp8_scratch_bytes(op.to, op.x.rows, op.x.cols); }

inline int64_t gpu_scratch_bytes(const ActivationForward& op) {
  return gpu_fp8_scratch_bytes(op.fp8, op.x.rows, activated_cols(op.kind, op.x.cols));
}

inline int64_t gpu_scratch_bytes(const ActivationBackward& op) {
  return gpu_fp8_scratch_bytes(op.fp8, op.x.rows, op.x.cols);
}

inline int64_t gpu_scratch_bytes(const BiasGradient& op) { return gpu_column_sum_bytes(op.dy.rows, op.dy.cols); }

constexpr int64_t gpu_scratch_bytes(const ScaledProduct&) { return gpu_product_workspace_bytes; }

// Scratch of attention: the table of documents, if any, and after it cuDNN's workspace if it serves the op, or else
// that of the own kernels: the first pass' softmax and sums if a pattern takes two passes over the queries; in
// AttentionBackward the sum over features of d_o o for each query and head, and dk and dv in f32 if keys lie in two
// orders. AttentionForward has, after all of it, the largest score of each row if it is wanted.
inline int64_t gpu_carried_bytes(const AttentionForward& op) {
  if (attention_passes(op.mask, op.sequence_length) == 1) return 0;
  return op.batch * op.sequence_length * op.num_heads * (op.head_size + 2) * dtype_bytes(DType::f32);
}

inline int64_t gpu_scratch_bytes(const AttentionForward& op) {
  const int64_t rows = op.batch * op.sequence_length * op.num_heads;
  return fused_attention_table_bytes(op) + fused_attention_scratch_bytes(op) + gpu_carried_bytes(op) +
         (op.largest.given() ? rows * dtype_bytes(DType::f32) : 0);
}

inline int64_t gpu_scratch_bytes(const AttentionBackward& op) {
  const int64_t rows = op.batch * op.sequence_length;
  int64_t sums = rows * op.num_heads;
  if (attention_sums_keys(op.mask, op.sequence_length)) sums += 2 * rows * op.num_kv_heads * op.head_size;
  if (attention_passes(op.mask, op.sequence_length) > 1) sums += rows * op.num_heads * op.head_size;
  return fused_attention_table_bytes(op) + std::max(sums * dtype_bytes(DType::f32), fused_attention_scratch_bytes(op));
}

// Parts run on the own kernels.
inline int64_t gpu_scratch_bytes(const AttentionPartBackward& op) {
  return op.of.sequence_length * op.of.num_heads * dtype_bytes(DType::f32);
}

// A router's sums over rows are cut into chunks of at most this many rows of a run, which are added up in order.
constexpr int64_t gpu_routing_chunk = 64;
constexpr int64_t gpu_routing_runs(const RouterRule& rule, int64_t rows) {
  return rows / std::max<int64_t>(rule.own_rows(), 1);
}
constexpr int64_t gpu_routing_chunks(const RouterRule& rule, int64_t rows) {
  return gpu_routing_runs(rule, rows) * ((rule.own_rows() + gpu_routing_chunk - 1) / gpu_routing_chunk);
}

// Sizes of the parts of RouteTokens' scratch memory, in numbers of 4 bytes: counts, slots and shares of each chunk and
// expert, two sums of each chunk, each copy's weight, and each row's keys if it needs any.
struct GpuRoutingSizes {
  int64_t copies, keys, chunks, counts;

  explicit GpuRoutingSizes(const RouteTokens& op)
      : copies(op.experts.count()),
        keys(op.bias.given() || op.rule.groups > 1 ? op.logits.count() : 0),
        chunks(gpu_routing_chunks(op.rule, op.logits.rows)),
        counts(chunks * op.logits.cols) {}
};

inline int64_t gpu_scratch_bytes(const RouteTokens& op) {
  const GpuRoutingSizes sizes(op);
  const int64_t parts = op.rule.capacity > 0 ? 4 : 3;
  return (sizes.copies + sizes.keys + parts * sizes.counts + 2 * sizes.chunks) * dtype_bytes(DType::f32);
}

// The gradients of the balance loss of each run, and counts of its chunks.
inline int64_t gpu_scratch_bytes(const RouteTokensBackward& op) {
  const int64_t runs = gpu_routing_runs(op.rule, op.logits.rows);
  return (runs + gpu_routing_chunks(op.rule, op.logits.rows)) * op.logits.cols * dtype_bytes(DType::f32);
}

inline int64_t gpu_scratch_bytes(const AddBalance& op) {
  return gpu_routing_chunks(op.rule, op.logits.rows) * dtype_bytes(DType::f32);
}

}  // namespace gptrain::ops
