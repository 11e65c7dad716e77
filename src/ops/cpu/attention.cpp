// Attention on the CPU: tiled, online softmax, float accumulation; probabilities are recomputed in the backward pass.
#include <algorithm>
#include <atomic>
#include <cmath>
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

// RETURNS the number of keys of a sequence. `part`: null if the op has whole sequences.
template <typename Op>
int64_t num_keys(const Op& op, const AttentionPart* part) {
  return part != nullptr ? part->keys : op.sequence_length;
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
  buffers.gathered = carver.take<Unit>(2 * tile);
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

AttentionBackwardBuffers carve_backward(ScratchCarver& carver, const AttentionBackward& op, const AttentionPart* part) {
  const int64_t tile = tile_size * packed_width(op.head_size);
  const int64_t square = tile_size * tile_size;
  const int64_t tiles = num_tiles(num_keys(op, part));
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
  buffers.gathered = carver.take<Unit>(3 * tile);
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
AttentionHead head_of(const Op& op, const AttentionPart* part, int64_t sequence, int64_t head) {
  const int64_t row = sequence * op.sequence_length;
  const int64_t kv_row = sequence * num_keys(op, part);
  const int64_t kv_head = head / (op.num_heads / op.num_kv_heads);
  AttentionHead view{};
  view.is_part = part != nullptr;
  view.tokens = op.sequence_length;
  view.head_size = op.head_size;
  view.scale = static_cast<float>(op.scale);
  view.softcap = static_cast<float>(op.softcap);
  view.sink = op.sinks.given() ? op.sinks.template as<float>()[head] : -std::numeric_limits<float>::infinity();
  const int32_t* const starts = op.mask.document_starts != nullptr ? op.mask.document_starts + row : nullptr;
  view.tiles = part != nullptr ? KeyTiles<true>::of_part(op.mask, op.sequence_length, *part, starts)
                               : KeyTiles<true>::of(op.mask, op.sequence_length, head, starts);
  view.q = at(op.q, row, head * op.head_size);
  view.k = at(op.k, kv_row, kv_head * op.head_size);
  view.v = at(op.v, kv_row, kv_head * op.head_size);
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

namespace {

// RETURNS the bytes for each thread: about five times tokens * head size floats.
int64_t bytes_of_thread(const AttentionBackward& op, const AttentionPart* part) {
  ScratchCarver carver(nullptr);
  carve_backward(carver, op, part);
  return carver.bytes();
}

int64_t backward_threads(const AttentionBackward& op, int num_threads) {
  return std::min<int64_t>(num_threads, op.batch * op.num_kv_heads);
}

}  // namespace

int64_t cpu_scratch_bytes(const AttentionBackward& op, int num_threads) {
  return backward_threads(op, num_threads) * bytes_of_thread(op, nullptr);
}

int64_t cpu_scratch_bytes(const AttentionPartForward& op, int num_threads) {
  return cpu_scratch_bytes(op.of, num_threads);
}

int64_t cpu_scratch_bytes(const AttentionPartBackward& op, int num_threads) {
  return backward_threads(op.of, num_threads) * bytes_of_thread(op.of, &op.part);
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
  std::fill_n(carried.row_max, op.sequence_length, head.sink);
  std::fill_n(carried.row_sum, op.sequence_length, op.sinks.given() ? 1.0F : 0.0F);
  for (int pass = 0; pass < head.tiles.num_passes(); ++pass)
    run_tiles(op, head, pass, {0, head.tiles.pass(pass).num_query_tiles()}, buffers);
}

// Raises the largest score of a head, which several threads may do at a time.
void raise(float& largest, float score) {
  const std::atomic_ref shared(largest);
  float before = shared.load();
  while (score > before && !shared.compare_exchange_weak(before, score)) {
  }
}

// Computes attention over whole sequences, or a part.
void run_forward(const AttentionForward& op, const AttentionPart* part, const CpuContext& context) {
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
      AttentionHead view = head_of(op, part, head / op.num_heads, head % op.num_heads);
      float largest = -std::numeric_limits<float>::infinity();
      if (op.largest.given()) view.largest = &largest;
      if (carries) {
        run_passes(op, view, buffers);
      } else {
        run_tiles(op, view, 0, {static_cast<int>(first_tile), static_cast<int>(std::min(first_tile + count, tiles))},
                  buffers);
      }
      if (op.largest.given()) raise(op.largest.as<float>()[head % op.num_heads], largest);
    }
  }
}

}  // namespace

void cpu_run(const AttentionForward& op, const CpuContext& context) { run_forward(op, nullptr, context); }
void cpu_run(const AttentionPartForward& op, const CpuContext& context) { run_forward(op.of, &op.part, context); }

namespace {

// RETURNS the sum over features of o d_o.
template <typename T>
double product_of_rows(const AttentionBackward& op, int64_t row, int64_t head) {
  const T* const o = static_cast<const T*>(at(op.o, row, head * op.head_size));
  const T* const d_o = static_cast<const T*>(at(op.d_o, row, head * op.head_size));
  double sum = 0;
  for (int64_t i = 0; i < op.head_size; ++i)
    sum += static_cast<double>(to_float(o[i])) * static_cast<double>(to_float(d_o[i]));
  return sum;
}

// A sink's probability is exp(sink - lse), and its gradient as that of a score whose value is zero.
template <typename T>
double gradient_of_sink(const AttentionBackward& op, int64_t head) {
  const double sink = static_cast<double>(op.sinks.as<const float>()[head]);
  double sum = 0;
  for (int64_t sequence = 0; sequence < op.batch; ++sequence) {
    const float* const lse = op.lse.as<const float>() + (sequence * op.num_heads + head) * op.lse.stride;
    for (int64_t token = 0; token < op.sequence_length; ++token)
      sum -= std::exp(sink - static_cast<double>(lse[token])) *
             product_of_rows<T>(op, sequence * op.sequence_length + token, head);
  }
  return sum;
}

template <typename T>
void sink_gradients(const AttentionBackward& op, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t head = 0; head < op.num_heads; ++head) op.d_sinks.as<double>()[head] = gradient_of_sink<T>(op, head);
}

void sink_gradients(const AttentionBackward& op, int num_threads) {
  if (op.q.dtype == DType::f32) return sink_gradients<float>(op, num_threads);
  if (op.q.dtype == DType::bf16) return sink_gradients<bf16>(op, num_threads);
  sink_gradients<f16>(op, num_threads);
}

// Divides sequences and key/value heads among threads.
void run_backward(const AttentionBackward& op, const AttentionPart* part, const CpuContext& context) {
  if (op.sinks.given()) sink_gradients(op, context.num_threads);
  const MatrixKernels& kernels = select_matrix_kernels();
  const int64_t groups = op.batch * op.num_kv_heads;
  const int64_t heads_per_group = op.num_heads / op.num_kv_heads;
  const int64_t thread_bytes = bytes_of_thread(op, part);
#pragma omp parallel num_threads(static_cast <int>(backward_threads(op, context.num_threads)))
  {
    ScratchCarver carver(context.scratch + omp_get_thread_num() * thread_bytes);
    const AttentionBackwardBuffers buffers = carve_backward(carver, op, part);
#pragma omp for schedule(dynamic, 1)
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t sequence = group / op.num_kv_heads;
      const int64_t row = sequence * op.sequence_length, kv_row = sequence * num_keys(op, part);
      const int64_t kv_head = group % op.num_kv_heads;
      for (int64_t i = 0; i < heads_per_group; ++i) {
        const int64_t head = kv_head * heads_per_group + i;
        AttentionHead view = head_of(op, part, sequence, head);
        view.d_o = at(op.d_o, row, head * op.head_size);
        view.dq = at(op.dq, row, head * op.head_size);
        view.dk = at(op.dk, kv_row, kv_head * op.head_size);
        view.dv = at(op.dv, kv_row, kv_head * op.head_size);
        view.d_o_stride = op.d_o.stride;
        view.dq_stride = op.dq.stride;
        view.dk_stride = op.dk.stride;
        view.dv_stride = op.dv.stride;
        kernels.attention_backward(view, op.q.dtype, i == 0, i + 1 == heads_per_group, buffers);
      }
    }
  }
}

}  // namespace

void cpu_run(const AttentionBackward& op, const CpuContext& context) { run_backward(op, nullptr, context); }
void cpu_run(const AttentionPartBackward& op, const CpuContext& context) { run_backward(op.of, &op.part, context); }

void cpu_run(const MergeAttention& op, const CpuContext& context) {
  const int64_t heads = op.lse.rows, head_size = op.o.cols / heads;
  parallel_shares(context.num_threads, op.o.rows, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        float& lse = op.lse.as<float>()[head * op.lse.stride + row];
        const float part_lse = op.part_lse.as<const float>()[head * op.part_lse.stride + row];
        if (part_lse == -std::numeric_limits<float>::infinity()) continue;
        const float larger = std::max(lse, part_lse), smaller = std::min(lse, part_lse);
        const float merged = larger + std::log1p(std::exp(smaller - larger));
        const float own = std::exp(lse - merged), other = std::exp(part_lse - merged);
        float* const o = op.o.as<float>() + row * op.o.stride + head * head_size;
        const float* const part = op.part_o.as<const float>() + row * op.part_o.stride + head * head_size;
        for (int64_t i = 0; i < head_size; ++i) o[i] = o[i] * own + part[i] * other;
        lse = merged;
      }
    }
  });
}

}  // namespace gptrain::ops
