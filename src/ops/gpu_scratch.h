// Scratch memory that each op needs on a GPU, in bytes; 0 for most. The footprints report these sizes on any machine,
// the plan reserves them, and the CUDA backend's kernels lay their scratch out within them. Where a size depends on
// how a kernel shares its work, the share is fixed here, so that sums have the same order on every device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/fused_attention_policy.h"
#include "ops/ops.h"

namespace gptrain {

template <typename Op>
constexpr int64_t gpu_scratch_bytes(const Op&) {
  return 0;
}

// Blocks of rows of NormBackward, each of which leaves a partial of the sums for gamma and beta. A block has a thread
// for every eight columns; as many as 132 multiprocessors hold of 768 threads keep enough memory accesses under way.
constexpr int64_t gpu_norm_most_blocks = 132 * 8;
constexpr int64_t gpu_norm_blocks(int64_t rows, int64_t cols) {
  return std::min(rows, std::min(gpu_norm_most_blocks, 132 * std::max<int64_t>(6144 / cols, 2)));
}

inline int64_t gpu_scratch_bytes(const NormBackward& op) {
  const int64_t sums = op.beta_sums.given() ? 2 : 1;
  return gpu_norm_blocks(op.x.rows, op.x.cols) * sums * op.x.cols * dtype_bytes(DType::f32);
}

// SquaredNorm cuts segments into chunks of this many elements and leaves an f64 sum of each.
constexpr int64_t gpu_norm_chunk = 1 << 14;

constexpr int64_t gpu_norm_chunks_bound(int64_t elements, int64_t num_segments) {
  return elements / gpu_norm_chunk + num_segments;
}

inline int64_t gpu_scratch_bytes(const SquaredNorm& op) {
  return gpu_norm_chunks_bound(op.gradients.cols, op.num_segments) * dtype_bytes(DType::f64);
}

// TensorNorms does the same with two sums.
template <typename Op>
int64_t gpu_scratch_bytes(const TensorNorms<Op>& op) {
  return 2 * gpu_norm_chunks_bound(op.update.gradients.cols, op.update.num_segments) * dtype_bytes(DType::f64);
}

// EmbeddingBackward sorts the rows by token: a key for each row, before and after a pass over them.
inline int64_t gpu_scratch_bytes(const EmbeddingBackward& op) { return 2 * op.dx.rows * dtype_bytes(DType::i64); }

// Most blocks of rows of QueryKeyBackward, each of which leaves a partial of one gamma's sums: first of the
// queries', and when these have been added up, of the keys'.
constexpr int64_t gpu_query_key_blocks = 1056;

inline int64_t gpu_scratch_bytes(const QueryKeyBackward& op) {
  const int64_t blocks = op.dq.rows < gpu_query_key_blocks ? op.dq.rows : gpu_query_key_blocks;
  return op.q_gamma.given() ? blocks * op.head_size * dtype_bytes(DType::f32) : 0;
}

// What a library's matrix product may use at most: no algorithm that wants more is taken. cuBLASLt recommends 32 MiB on
// Hopper. Twice as much holds the parts of a 768 x 3072 weight gradient whose sum is split seven times, so that its 72
// tiles fill the device.
constexpr int64_t gpu_product_workspace_bytes = int64_t{64} << 20;

// Behind the workspace, a copy of the bias as the library takes it: aligned, in y's dtype.
inline int64_t gpu_scratch_bytes(const LinearForward& op) {
  return gpu_product_workspace_bytes + (op.bias.given() ? op.bias.cols * dtype_bytes(op.y.dtype) : 0);
}

constexpr int64_t gpu_scratch_bytes(const LinearBackwardInput&) { return gpu_product_workspace_bytes; }

// A sum over rows is cut into chunks of rows, each of which leaves an f32 partial of every column: at most 128 chunks,
// of at least 64 rows.
constexpr int64_t gpu_column_sum_chunk(int64_t rows) { return std::max<int64_t>(64, (rows + 127) / 128); }

constexpr int64_t gpu_column_sum_bytes(int64_t rows, int64_t cols) {
  const int64_t chunk = gpu_column_sum_chunk(rows);
  return (rows + chunk - 1) / chunk * cols * dtype_bytes(DType::f32);
}

// Where the bias' gradient is summed apart, that is done when the product has left the workspace. Behind both, what a
// library makes of it before it is added.
inline int64_t gpu_bias_gradient_offset(const LinearBackwardWeight& op) {
  constexpr int64_t alignment = 256;
  const int64_t sums = op.d_bias.given() ? gpu_column_sum_bytes(op.dy.rows, op.dy.cols) : 0;
  return (std::max(sums, gpu_product_workspace_bytes) + alignment - 1) / alignment * alignment;
}

inline int64_t gpu_scratch_bytes(const LinearBackwardWeight& op) {
  return gpu_bias_gradient_offset(op) + op.d_bias.bytes();
}

// Quantize works on tiles of so many rows, each of which leaves an f32 partial of its columns' sums.
constexpr int64_t gpu_quantize_tile = 128;
constexpr int64_t gpu_quantize_row_tiles(int64_t rows) { return (rows + gpu_quantize_tile - 1) / gpu_quantize_tile; }

inline int64_t gpu_scratch_bytes(const Quantize& op) {
  return op.column_sums.given() ? gpu_quantize_row_tiles(op.x.rows) * op.x.cols * dtype_bytes(DType::f32) : 0;
}

inline int64_t gpu_scratch_bytes(const BiasGradient& op) { return gpu_column_sum_bytes(op.dy.rows, op.dy.cols); }

constexpr int64_t gpu_scratch_bytes(const ScaledProduct&) { return gpu_product_workspace_bytes; }

// Where cuDNN takes the op, its workspace. Elsewhere AttentionBackward keeps the sum over features of d_o o for each
// query and head. Both come behind the table of documents, if there is one.
inline int64_t gpu_scratch_bytes(const AttentionForward& op) {
  return fused_attention_table_bytes(op) + fused_attention_scratch_bytes(op);
}

inline int64_t gpu_scratch_bytes(const AttentionBackward& op) {
  return fused_attention_table_bytes(op) +
         std::max(op.batch * op.num_heads * op.sequence_length * dtype_bytes(DType::f32),
                  fused_attention_scratch_bytes(op));
}

}  // namespace gptrain
