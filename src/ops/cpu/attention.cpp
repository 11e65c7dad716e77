// Attention on the CPU: tiled, online softmax, float accumulation; probabilities are recomputed in the backward pass.
#include <algorithm>
#include <limits>
#include <omp.h>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kernels/matrix_kernel_table.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/scratch_carver.h"
#include "ops/footprint.h"

namespace gptrain::inline ops {
namespace {

static_assert(tile_size == attention_query_tile && tile_size == attention_key_tile);

int64_t num_tiles(int64_t tokens) { return (tokens + tile_size - 1) / tile_size; }

// RETURNS the tiles of a head, in all passes; head sets differ in no size.
template <typename Op>
KeyTiles<true> tiles_of(const Op& op) {
  return KeyTiles<true>::of(op.mask, op.sequence_length, 0, nullptr);
}

AttentionForwardBuffers carve_forward(ScratchCarver& carver, const AttentionForward& op) {
  const int64_t tile = tile_size * packed_width(op.head_size);
  const int64_t square = tile_size * tile_size;
  AttentionForwardBuffers buffers{};
  buffers.q = carver.take<Unit>(max_query_tiles * tile);
  buffers.k_rows = carver.take<Unit>(tile);
  buffers.k = carver.take<Unit>(tile);
  buffers.v = carver.take<Unit>(tile);
  buffers.o = carver.take<float>(max_query_tiles * tile);
  buffers.scores = carver.take<float>(square);
  buffers.probabilities = carver.take<Unit>(square);
  buffers.row_max = carver.take<float>(max_query_tiles * tile_size);
  buffers.row_sum = carver.take<float>(max_query_tiles * tile_size * 16);
  if (op.mask.pattern.one_run()) return buffers;
  buffers.gathered = carver.take<Unit>(tile);
  if (tiles_of(op).num_passes() == 1) return buffers;
  buffers.carried.o = carver.take<float>(op.sequence_length * packed_width(op.head_size));
  buffers.carried.row_max = carver.take<float>(op.sequence_length);
  buffers.carried.row_sum = carver.take<float>(op.sequence_length);
  return buffers;
}

// RETURNS the query tiles of the pass that has the most.
int64_t most_query_tiles(const KeyTiles<true>& all) {
  int most = 0;
  for (int i = 0; i < all.num_passes(); ++i) most = std::max(most, all.pass(i).num_query_tiles());
  return most;
}

AttentionBackwardBuffers carve_backward(ScratchCarver& carver, const AttentionBackward& op) {
  const int64_t tile = tile_size * packed_width(op.head_size);
  const int64_t square = tile_size * tile_size;
  const int64_t tiles = num_tiles(op.sequence_length);
  const KeyTiles<true> all = tiles_of(op);
  const int64_t query_tiles = most_query_tiles(all);
  const bool several_runs = !op.mask.pattern.one_run();
  AttentionBackwardBuffers buffers{};
  buffers.grouped = op.num_heads > op.num_kv_heads && !several_runs;
  buffers.q = carver.take<Unit>(query_tiles * tile);
  buffers.d_o = carver.take<Unit>(query_tiles * tile);
  buffers.dq = carver.take<float>(query_tiles * tile);
  buffers.dk = carver.take<float>(buffers.grouped ? tiles * tile : tile);
  buffers.dv = carver.take<float>(buffers.grouped ? tiles * tile : tile);
  buffers.delta = carver.take<float>(query_tiles * tile_size);
  buffers.k_rows = carver.take<Unit>(tile);
  buffers.k = carver.take<Unit>(tile);
  buffers.v = carver.take<Unit>(tile);
  buffers.scores = carver.take<float>(square);
  buffers.d_scores = carver.take<float>(square);
  buffers.p_pairs = carver.take<Unit>(square);
  buffers.ds_pairs = carver.take<Unit>(square);
  buffers.ds_rows = carver.take<Unit>(square);
  if (!several_runs) return buffers;
  if (op.num_heads > op.num_kv_heads || attention_sums_keys(op.mask, op.sequence_length)) {
    buffers.dk_sums = carver.take<float>(tiles * tile);
    buffers.dv_sums = carver.take<float>(tiles * tile);
  }
  if (all.num_passes() > 1) buffers.dq_sums = carver.take<float>(tiles * tile);
  buffers.lse = carver.take<float>(query_tiles * tile_size);
  buffers.gathered = carver.take<Unit>(tile);
  return buffers;
}

// RETURNS the query tiles per task: the largest number that shares a packing of the keys, or fewer if threads would be
// idle.
int64_t query_tiles_per_task(const AttentionForward& op, int64_t tiles, int num_threads) {
  const int64_t heads = op.batch * op.num_heads;
  constexpr int64_t tasks_per_thread = 4;  // tasks differ in size under a causal mask
  int64_t count = max_query_tiles;
  while (count > 1 && heads * ((tiles + count - 1) / count) < tasks_per_thread * num_threads) count /= 2;
  return count;
}

void* at(const Matrix& matrix, int64_t row, int64_t col) { return matrix.row_range(row, 1).column_range(col, 1).data; }

// RETURNS the operands of one sequence and head that forward and backward have in common.
template <typename Op>
AttentionHead head_of(const Op& op, int64_t sequence, int64_t head) {
  const int64_t row = sequence * op.sequence_length;
  const int64_t kv_head = head / (op.num_heads / op.num_kv_heads);
  AttentionHead view{};
  view.tokens = op.sequence_length;
  view.head_size = op.head_size;
  view.scale = static_cast<float>(op.scale);
  view.softcap = static_cast<float>(op.softcap);
  const int32_t* const starts = op.mask.document_starts != nullptr ? op.mask.document_starts + row : nullptr;
  view.tiles = KeyTiles<true>::of(op.mask, op.sequence_length, head, starts);
  view.q = at(op.q, row, head * op.head_size);
  view.k = at(op.k, row, kv_head * op.head_size);
  view.v = at(op.v, row, kv_head * op.head_size);
  view.o = at(op.o, row, head * op.head_size);
  view.q_stride = op.q.stride;
  view.k_stride = op.k.stride;
  view.v_stride = op.v.stride;
  view.o_stride = op.o.stride;
  view.lse = op.lse.template as<float>() + (sequence * op.num_heads + head) * op.lse.stride;
  if (op.dropout.p > 0) {
    const auto words = philox(op.dropout.key, {static_cast<uint32_t>(op.dropout.first_head + head), 0, 0, 0});
    const auto sample = static_cast<uint64_t>(op.dropout.sample_ids[sequence]);
    view.drop_threshold = drop_threshold(op.dropout.p);
    view.keep_scale = static_cast<float>(1 / (1 - op.dropout.p));
    view.key0 = words[0];
    view.key1 = words[1];
    view.sample_low = static_cast<uint32_t>(sample);
    view.sample_high = static_cast<uint32_t>(sample >> 32);
  }
  return view;
}

}  // namespace

// Bytes of a few tiles of the head size for each thread.
int64_t cpu_scratch_bytes(const AttentionForward& op, int num_threads) {
  ScratchCarver carver(nullptr);
  carve_forward(carver, op);
  return num_threads * carver.bytes();
}

// Bytes of about five times tokens * head size floats for each thread.
int64_t cpu_scratch_bytes(const AttentionBackward& op, int num_threads) {
  ScratchCarver carver(nullptr);
  carve_backward(carver, op);
  return std::min<int64_t>(num_threads, op.batch * op.num_kv_heads) * carver.bytes();
}

namespace {

// Computes query tiles [first, first + count) of a pass, as many at a time as share packed keys.
void run_tiles(const AttentionForward& op, AttentionHead head, int pass, const PlaceRange& range,
               const AttentionForwardBuffers& buffers) {
  head.tiles = head.tiles.pass(pass);
  for (int64_t tile = range.first; tile < range.end; tile += max_query_tiles)
    select_matrix_kernels().attention_forward(head, op.q.dtype, tile,
                                              std::min<int64_t>(max_query_tiles, range.end - tile), buffers);
}

// Computes a head whose second pass goes on from the first.
void run_passes(const AttentionForward& op, const AttentionHead& head, const AttentionForwardBuffers& buffers) {
  const CarriedSoftmax& carried = buffers.carried;
  std::fill_n(carried.o, op.sequence_length * packed_width(op.head_size), 0.0F);
  std::fill_n(carried.row_max, op.sequence_length, -std::numeric_limits<float>::infinity());
  std::fill_n(carried.row_sum, op.sequence_length, 0.0F);
  for (int pass = 0; pass < head.tiles.num_passes(); ++pass)
    run_tiles(op, head, pass, {0, head.tiles.pass(pass).num_query_tiles()}, buffers);
}

}  // namespace

void cpu_run(const AttentionForward& op, const CpuContext& context) {
  const int64_t heads = op.batch * op.num_heads;
  const KeyTiles<true> all = tiles_of(op);
  const bool carries = all.num_passes() > 1;
  const int64_t tiles = all.pass(0).num_query_tiles();
  const int64_t count = carries ? tiles : query_tiles_per_task(op, tiles, context.num_threads);
  const int64_t tasks_per_head = (tiles + count - 1) / count;
  const int64_t thread_bytes = cpu_scratch_bytes(op, 1);
#pragma omp parallel num_threads(context.num_threads)
  {
    ScratchCarver carver(context.scratch + omp_get_thread_num() * thread_bytes);
    const AttentionForwardBuffers buffers = carve_forward(carver, op);
    // Starts with the last queries, which see the most keys under a causal mask.
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < heads * tasks_per_head; ++task) {
      const int64_t head = task % heads;
      const int64_t first_tile = (tasks_per_head - 1 - task / heads) * count;
      const AttentionHead view = head_of(op, head / op.num_heads, head % op.num_heads);
      if (carries) {
        run_passes(op, view, buffers);
      } else {
        run_tiles(op, view, 0, {static_cast<int>(first_tile), static_cast<int>(std::min(first_tile + count, tiles))},
                  buffers);
      }
    }
  }
}

// Divides sequences and key/value heads among threads.
void cpu_run(const AttentionBackward& op, const CpuContext& context) {
  const MatrixKernels& kernels = select_matrix_kernels();
  const int64_t groups = op.batch * op.num_kv_heads;
  const int64_t heads_per_group = op.num_heads / op.num_kv_heads;
  const int64_t thread_bytes = cpu_scratch_bytes(op, 1);
#pragma omp parallel num_threads(static_cast <int>(std::min <int64_t>(context.num_threads, groups)))
  {
    ScratchCarver carver(context.scratch + omp_get_thread_num() * thread_bytes);
    const AttentionBackwardBuffers buffers = carve_backward(carver, op);
#pragma omp for schedule(dynamic, 1)
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t sequence = group / op.num_kv_heads;
      const int64_t row = sequence * op.sequence_length;
      const int64_t kv_head = group % op.num_kv_heads;
      for (int64_t i = 0; i < heads_per_group; ++i) {
        const int64_t head = kv_head * heads_per_group + i;
        AttentionHead view = head_of(op, sequence, head);
        view.d_o = at(op.d_o, row, head * op.head_size);
        view.dq = at(op.dq, row, head * op.head_size);
        view.dk = at(op.dk, row, kv_head * op.head_size);
        view.dv = at(op.dv, row, kv_head * op.head_size);
        view.d_o_stride = op.d_o.stride;
        view.dq_stride = op.dq.stride;
        view.dk_stride = op.dk.stride;
        view.dv_stride = op.dv.stride;
        kernels.attention_backward(view, op.q.dtype, i == 0, i + 1 == heads_per_group, buffers);
      }
    }
  }
}

}  // namespace gptrain::ops
