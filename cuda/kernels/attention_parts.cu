// Attention over parts of sequences, and the sum of parts.
#include "kernels/attention_backward.h"
#include "kernels/attention_forward.h"

namespace gptrain::inline cuda {
namespace {

constexpr unsigned merge_threads = 256;

// A warp per row and head.
__global__ void merge(Rows<const float> part_o, Rows<const float> part_lse, Rows<float> o, Rows<float> lse,
                      int64_t rows, int64_t heads, int64_t head_size) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * merge_threads + threadIdx.x) / 32;
  const int64_t row = index / heads, head = index % heads;
  if (row >= rows) return;
  const float other = *part_lse.at(head, row);
  if (other == -attention::infinity) return;
  const unsigned lane = threadIdx.x % 32;
  const float own = __shfl_sync(0xffffffff, lane == 0 ? *lse.at(head, row) : 0.0F, 0);
  const float larger = fmaxf(own, other);
  const float merged = larger + log1pf(expf(fminf(own, other) - larger));
  const float own_share = expf(own - merged), other_share = expf(other - merged);
  float* const sum = o.at(row, head * head_size);
  const float* const part = part_o.at(row, head * head_size);
  for (int64_t i = lane; i < head_size; i += 32) sum[i] = sum[i] * own_share + part[i] * other_share;
  if (lane == 0) *lse.at(head, row) = merged;
}

}  // namespace

void cuda_run(const AttentionPartForward& op, Stream stream, std::byte* scratch) {
  attention::run_forward<false, true>(op.of, stream, scratch, nullptr, &op.part);
}

void cuda_run(const AttentionPartBackward& op, Stream stream, std::byte* scratch) {
  attention::run_backward<false, true>(op.of, stream, scratch, nullptr, &op.part);
}

void cuda_run(const MergeAttention& op, Stream stream, std::byte*) {
  const int64_t heads = op.lse.rows, rows = op.o.rows;
  constexpr int64_t rows_of_block = merge_threads / 32;
  launch(stream, {(rows * heads + rows_of_block - 1) / rows_of_block, merge_threads, 0}, merge,
         Rows<const float>(op.part_o), Rows<const float>(op.part_lse), Rows<float>(op.o), Rows<float>(op.lse), rows,
         heads, op.o.cols / heads);
}

}  // namespace gptrain::cuda
