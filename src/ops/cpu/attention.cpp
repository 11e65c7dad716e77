// Attention on the CPU: tiled, online softmax, float accumulation; probabilities are recomputed in the backward pass.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
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

// The division of picked queries: into blocks of tiles that begin with a class, so that their keys are in them, too,
// and into runs of neighbouring heads, whose rows are neighbours in memory. A run has heads of one group that shares
// keys, or of several groups of one head. Tiles do not depend on the number of heads.
struct PickedBlocks {
  int tiles = 0;                    // tiles of a block; 0: no queries are picked
  int all_tiles = 0;                // tiles of a head
  int64_t sharing = 1;              // query heads that share keys
  int64_t heads = 0, kv_heads = 0;  // heads of the largest run
  int64_t heads_per_part = 0;       // heads that are divided into runs together: a group, or all of a sequence

  int64_t num_blocks() const { return (all_tiles + tiles - 1) / tiles; }
  PlaceRange block(int64_t index) const {
    const int first = static_cast<int>(index) * tiles;
    return {first, std::min(first + tiles, all_tiles)};
  }
  int64_t runs_per_part() const { return (heads_per_part + heads - 1) / heads; }
  // RETURNS the runs in which keys are shared: neighbours.
  int64_t runs_per_group() const { return sharing > 1 ? runs_per_part() : 1; }
  int64_t num_groups(int64_t num_heads) const {
    return num_heads / heads_per_part * (runs_per_part() / runs_per_group());
  }
  // Calls f(head) for the heads of a run.
  template <typename F>
  void each_head(int64_t run, const F& f) const {
    const int64_t part = run / runs_per_part() * heads_per_part, first = run % runs_per_part() * heads;
    for (int64_t i = first; i < std::min(first + heads, heads_per_part); ++i) f(part + i);
  }
};

// `one_head`: each head has buffers for the whole sequence.
template <typename Op>
PickedBlocks picked_blocks(const Op& op, bool one_head) {
  const KeyTiles<true> pass = tiles_of(op).pass(0);
  if (!pass.picked_queries) return {};
  // Tiles of all heads of a block: buffers of the fewest stay in the second-level cache, and those of the most, which
  // long classes take, are read often.
  constexpr int64_t wanted_tiles = 8, most_tiles = 32;
  PickedBlocks blocks;
  blocks.all_tiles = pass.num_query_tiles();
  blocks.sharing = op.num_heads / op.num_kv_heads;
  blocks.heads_per_part = blocks.sharing > 1 ? blocks.sharing : op.num_heads;
  const int least = pass.class_places / std::gcd(pass.class_places, attention_tile);
  const int64_t most_heads = one_head ? 1 : std::clamp<int64_t>(most_tiles / least, 1, max_picked_heads);
  blocks.heads = std::min(blocks.heads_per_part, most_heads);
  blocks.kv_heads = blocks.sharing > 1 ? 1 : blocks.heads;
  const int64_t fitting = std::max<int64_t>(1, wanted_tiles / (least * blocks.heads));
  blocks.tiles = static_cast<int>(std::min<int64_t>(least * fitting, blocks.all_tiles));
  return blocks;
}

PickedBlocks forward_blocks(const AttentionForward& op) { return picked_blocks(op, tiles_of(op).num_passes() > 1); }

// RETURNS whether gradients of keys are summed for the whole sequence: each head's in its order.
bool sums_keys(const AttentionBackward& op) { return attention_sums_keys(op.mask, op.sequence_length); }
PickedBlocks backward_blocks(const AttentionBackward& op) { return picked_blocks(op, sums_keys(op)); }

AttentionForwardBuffers carve_forward(ScratchCarver& carver, const AttentionForward& op) {
  const int64_t tile = tile_size * packed_width(op.head_size);
  const int64_t square = tile_size * tile_size;
  const PickedBlocks blocks = forward_blocks(op);
  AttentionForwardBuffers buffers{};
  buffers.q = carver.take<Unit>(std::max(max_query_tiles, blocks.heads * blocks.tiles) * tile);
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
  if (blocks.tiles > 0) {
    buffers.picked_k = carver.take<Unit>(blocks.kv_heads * blocks.tiles * tile);
    buffers.picked_v = carver.take<Unit>(blocks.kv_heads * blocks.tiles * tile);
  }
  if (tiles_of(op).num_passes() == 1) return buffers;
  buffers.carried.o = carver.take<float>(op.sequence_length * packed_width(op.head_size));
  buffers.carried.row_max = carver.take<float>(op.sequence_length);
  buffers.carried.row_sum = carver.take<float>(op.sequence_length);
  return buffers;
}

AttentionBackwardBuffers carve_backward(ScratchCarver& carver, const AttentionBackward& op, const AttentionPart* part) {
  const int64_t tile = tile_size * packed_width(op.head_size);
  const int64_t square = tile_size * tile_size;
  const int64_t tiles = num_tiles(num_keys(op, part));
  const KeyTiles<true> all = tiles_of(op);
  const PickedBlocks blocks = backward_blocks(op);
  const bool only_picked = all.pass(all.num_passes() - 1).picked_queries;
  const int64_t natural_tiles = only_picked ? 0 : num_tiles(op.sequence_length);
  const int64_t query_tiles = std::max(natural_tiles, blocks.heads * blocks.tiles);
  const bool sums = !op.mask.pattern.one_run() && sums_keys(op);
  AttentionBackwardBuffers buffers{};
  buffers.grouped = op.num_heads > op.num_kv_heads && !sums;
  const int64_t summed_tiles = !buffers.grouped ? 1 : blocks.tiles > 0 ? blocks.tiles : tiles;
  buffers.q = carver.take<Unit>(query_tiles * tile);
  buffers.d_o = carver.take<Unit>(query_tiles * tile);
  buffers.dq = carver.take<float>(std::max<int64_t>(natural_tiles, blocks.tiles) * tile);
  buffers.dk = carver.take<float>(summed_tiles * tile);
  buffers.dv = carver.take<float>(summed_tiles * tile);
  buffers.delta = carver.take<float>(query_tiles * tile_size);
  buffers.k_rows = carver.take<Unit>(tile);
  buffers.k = carver.take<Unit>(tile);
  buffers.v = carver.take<Unit>(tile);
  buffers.scores = carver.take<float>(square);
  buffers.d_scores = carver.take<float>(square);
  buffers.p_pairs = carver.take<Unit>(square);
  buffers.ds_pairs = carver.take<Unit>(square);
  buffers.ds_rows = carver.take<Unit>(square);
  if (op.mask.pattern.one_run()) return buffers;
  if (sums) {
    buffers.dk_sums = carver.take<float>(tiles * tile);
    buffers.dv_sums = carver.take<float>(tiles * tile);
  }
  if (all.num_passes() > 1) buffers.dq_sums = carver.take<float>(tiles * tile);
  buffers.gathered = carver.take<Unit>(2 * tile);
  buffers.block_tiles = blocks.tiles;
  if (blocks.tiles == 0) return buffers;
  buffers.lse = carver.take<float>(blocks.heads * blocks.tiles * tile_size);
  buffers.picked_k = carver.take<Unit>(blocks.kv_heads * blocks.tiles * tile);
  buffers.picked_v = carver.take<Unit>(blocks.kv_heads * blocks.tiles * tile);
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

// RETURNS whether blocks of picked queries are tasks of their own.
bool divides_blocks(const AttentionBackward& op) { return backward_blocks(op).tiles > 0 && !sums_keys(op); }

int64_t backward_threads(const AttentionBackward& op, int num_threads) {
  const PickedBlocks blocks = backward_blocks(op);
  const int64_t tasks = divides_blocks(op) ? blocks.num_groups(op.num_heads) * blocks.num_blocks() : op.num_kv_heads;
  return std::min<int64_t>(num_threads, op.batch * tasks);
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

// Computes a head whose second pass, in the natural order, goes on from the first.
void run_passes(const AttentionForward& op, const AttentionHead& head, const AttentionForwardBuffers& buffers) {
  const CarriedSoftmax& carried = buffers.carried;
  if (!head.tiles.is_picked(head.tiles.width - 1)) {  // the first pass leaves out some tokens
    std::fill_n(carried.o, op.sequence_length * packed_width(op.head_size), 0.0F);
    std::fill_n(carried.row_max, op.sequence_length, head.sink);
    std::fill_n(carried.row_sum, op.sequence_length, op.sinks.given() ? 1.0F : 0.0F);
  }
  PickedHeads picked{.at = {head}, .count = 1};
  picked.at[0].tiles = head.tiles.pass(0);
  const PickedBlocks blocks = forward_blocks(op);
  for (int64_t i = 0; i < blocks.num_blocks(); ++i)
    select_matrix_kernels().picked_forward(picked, op.q.dtype, blocks.block(i), buffers);
  run_tiles(op, head, 1, {0, head.tiles.pass(1).num_query_tiles()}, buffers);
}

// Raises the largest score of a head, which several threads may do at a time.
void raise(float& largest, float score) {
  const std::atomic_ref shared(largest);
  float before = shared.load();
  while (score > before && !shared.compare_exchange_weak(before, score)) {
  }
}

// Computes one head of a sequence, or query tiles of it.
void run_head(const AttentionForward& op, const AttentionPart* part, int64_t head, const PlaceRange& tiles,
              const AttentionForwardBuffers& buffers) {
  AttentionHead view = head_of(op, part, head / op.num_heads, head % op.num_heads);
  float largest = -std::numeric_limits<float>::infinity();
  if (op.largest.given()) view.largest = &largest;
  if (buffers.carried.o != nullptr) {
    run_passes(op, view, buffers);
  } else {
    run_tiles(op, view, 0, tiles, buffers);
  }
  if (op.largest.given()) raise(op.largest.as<float>()[head % op.num_heads], largest);
}

// Computes a block of picked queries of a run of heads.
void run_block(const AttentionForward& op, const PickedBlocks& blocks, int64_t task,
               const AttentionForwardBuffers& buffers) {
  const int64_t runs = blocks.num_groups(op.num_heads) * blocks.runs_per_group();
  PickedHeads heads;
  float largest[max_picked_heads];
  int64_t first_head = 0;
  blocks.each_head(task % runs, [&](int64_t head) {
    if (heads.count == 0) first_head = head;
    AttentionHead& view = heads.at[heads.count];
    view = head_of(op, nullptr, task / runs / blocks.num_blocks(), head);
    view.tiles = view.tiles.pass(0);
    largest[heads.count] = -std::numeric_limits<float>::infinity();
    if (op.largest.given()) view.largest = &largest[heads.count];
    ++heads.count;
  });
  select_matrix_kernels().picked_forward(heads, op.q.dtype, blocks.block(task / runs % blocks.num_blocks()), buffers);
  for (int i = 0; op.largest.given() && i < heads.count; ++i) raise(op.largest.as<float>()[first_head + i], largest[i]);
}

// Computes attention over whole sequences, or a part.
void run_forward(const AttentionForward& op, const AttentionPart* part, const CpuContext& context) {
  const int64_t heads = op.batch * op.num_heads;
  const KeyTiles<true> all = tiles_of(op);
  const PickedBlocks blocks = forward_blocks(op);
  const bool carries = all.num_passes() > 1, in_blocks = blocks.tiles > 0 && !carries;
  const int64_t tiles = all.pass(0).num_query_tiles();
  const int64_t count = carries ? tiles : query_tiles_per_task(op, tiles, context.num_threads);
  const int64_t tasks_per_head = (tiles + count - 1) / count;
  const int64_t tasks = in_blocks
                            ? op.batch * blocks.num_groups(op.num_heads) * blocks.runs_per_group() * blocks.num_blocks()
                            : heads * tasks_per_head;
  const int64_t thread_bytes = cpu_scratch_bytes(op, 1);
#pragma omp parallel num_threads(context.num_threads)
  {
    ScratchCarver carver(context.scratch + omp_get_thread_num() * thread_bytes);
    const AttentionForwardBuffers buffers = carve_forward(carver, op);
    // Starts with the last queries, which see the most keys under a causal mask.
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) {
      if (in_blocks) {
        run_block(op, blocks, task, buffers);
      } else {
        const int64_t first = (tasks_per_head - 1 - task / heads) * count;
        run_head(op, part, task % heads, {static_cast<int>(first), static_cast<int>(std::min(first + count, tiles))},
                 buffers);
      }
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

AttentionHead backward_head_of(const AttentionBackward& op, const AttentionPart* part, int64_t sequence, int64_t head) {
  const int64_t row = sequence * op.sequence_length, kv_row = sequence * num_keys(op, part);
  const int64_t kv_head = head / (op.num_heads / op.num_kv_heads);
  AttentionHead view = head_of(op, part, sequence, head);
  view.d_o = at(op.d_o, row, head * op.head_size);
  view.dq = at(op.dq, row, head * op.head_size);
  view.dk = at(op.dk, kv_row, kv_head * op.head_size);
  view.dv = at(op.dv, kv_row, kv_head * op.head_size);
  view.d_o_stride = op.d_o.stride;
  view.dq_stride = op.dq.stride;
  view.dk_stride = op.dk.stride;
  view.dv_stride = op.dv.stride;
  return view;
}

// Computes the heads that share keys.
void run_group(const AttentionBackward& op, const AttentionPart* part, int64_t group,
               const AttentionBackwardBuffers& buffers) {
  const int64_t sharing = op.num_heads / op.num_kv_heads;
  for (int64_t i = 0; i < sharing; ++i) {
    const AttentionHead head =
        backward_head_of(op, part, group / op.num_kv_heads, group % op.num_kv_heads * sharing + i);
    select_matrix_kernels().attention_backward(head, op.q.dtype, {i == 0, i + 1 == sharing}, buffers);
  }
}

// Computes a block of picked queries of a run of heads, or of all that share keys.
void run_block(const AttentionBackward& op, const PickedBlocks& blocks, int64_t task,
               const AttentionBackwardBuffers& buffers) {
  const int64_t groups = blocks.num_groups(op.num_heads), runs = blocks.runs_per_group();
  for (int64_t i = 0; i < runs; ++i) {
    PickedHeads heads;
    blocks.each_head(task % groups * runs + i, [&](int64_t head) {
      heads.at[heads.count++] = backward_head_of(op, nullptr, task / groups / blocks.num_blocks(), head);
    });
    select_matrix_kernels().picked_backward(heads, op.q.dtype, blocks.block(task / groups % blocks.num_blocks()),
                                            {i == 0, i + 1 == runs}, buffers);
  }
}

// Divides sequences and key/value heads among threads, and blocks of picked queries.
void run_backward(const AttentionBackward& op, const AttentionPart* part, const CpuContext& context) {
  if (op.sinks.given()) sink_gradients(op, context.num_threads);
  const PickedBlocks blocks = backward_blocks(op);
  const bool in_blocks = divides_blocks(op);
  const int64_t tasks =
      op.batch * (in_blocks ? blocks.num_groups(op.num_heads) * blocks.num_blocks() : op.num_kv_heads);
  const int64_t thread_bytes = bytes_of_thread(op, part);
#pragma omp parallel num_threads(static_cast <int>(backward_threads(op, context.num_threads)))
  {
    ScratchCarver carver(context.scratch + omp_get_thread_num() * thread_bytes);
    const AttentionBackwardBuffers buffers = carve_backward(carver, op, part);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) {
      if (in_blocks) {
        run_block(op, blocks, task, buffers);
      } else {
        run_group(op, part, task, buffers);
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
