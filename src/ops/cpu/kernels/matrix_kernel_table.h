// The serial kernels of attention and of the linears that oneDNN does not support, one table per instruction set.
// attention.cpp and linear.cpp divide the work among threads and give each thread its buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "ops/key_tiles.h"

namespace gptrain::inline ops {

// Queries and keys of a tile of attention; rows and columns of a tile of the tiled linear.
constexpr int64_t tile_size = 64;
static_assert(tile_size == attention_tile);
// Query tiles that share one packing of a key tile.
constexpr int64_t max_query_tiles = 4;
// Query heads of a sequence whose picked queries are moved together.
constexpr int max_picked_heads = 4;
// Columns that one call of column_sums may cover.
constexpr int64_t column_sum_width = 256;
// Rows of a product that share registers; row counts are rounded up to a multiple.
constexpr int product_rows = 4;

// 32 bits of a packed tile: a float or a pair of bfloat16.
using Unit [[gnu::may_alias]] = uint32_t;

// The operands of one sequence and one query head. Pointers are at token 0 of the head; strides are in elements.
// Elements are all bf16 or all f32, except for a part's results.
struct AttentionHead {
  int64_t tokens;
  int64_t head_size;
  float scale;
  float softcap;         // bound of scaled scores; 0: none
  float* largest;        // forward: raised to the largest score; nullptr: not wanted
  float sink;            // score without a key in every row; minus infinity: none
  KeyTiles<true> tiles;  // forward: of one pass
  bool is_part;          // results are f32, and some queries may see no key, and some keys no query
  const void *q, *k, *v, *d_o;
  void* o;
  float* lse;
  void *dq, *dk, *dv;
  int64_t q_stride, k_stride, v_stride, o_stride, d_o_stride, dq_stride, dk_stride, dv_stride;
  // Dropout: an element is dropped if its word is below the threshold (0: no dropout), else scaled by keep_scale.
  uint32_t drop_threshold;
  float keep_scale;
  uint32_t key0, key1;
  uint32_t sample_low, sample_high;
};

// Floats (or units) from one row of a packed tile to the next.
constexpr int64_t packed_width(int64_t head_size) { return (head_size + 31) / 32 * 32; }

// State of a head's online softmax between two passes, by token.
struct CarriedSoftmax {
  float* o;  // [tokens][packed_width]; nullptr: there is one pass
  float *row_max, *row_sum;
};

struct AttentionForwardBuffers {
  Unit* q;               // [max_query_tiles][tile] or, of a block of picked queries, [heads][tiles of a block][tile]
  Unit *k_rows, *k, *v;  // [tile]
  float* o;              // [max_query_tiles][tile]
  float* scores;         // [tile_size][tile_size]
  Unit* probabilities;   // [tile_size][tile_size]
  float* row_max;        // [max_query_tiles][tile_size], of scaled (and capped) scores
  float* row_sum;        // [max_query_tiles][tile_size][16], partial sums by vector lane
  Unit* gathered;        // [2][tile], if the pattern picks keys for queries in the natural order
  Unit *picked_k, *picked_v;  // [key/value heads][tiles of a block][tile], rows of keys beside picked queries
  CarriedSoftmax carried;
};

struct AttentionBackwardBuffers {
  PlaceRange query_tiles;              // tiles that delta and lse hold: of a pass, or of a block
  int kept_tiles;                      // tiles that q, d_o and dq hold at a time: tile t at t modulo this
  Unit *q, *d_o;                       // [query tiles][tile]
  float* dq;                           // [query tiles][tile]
  float *dk, *dv;                      // [tiles of the sequence or of a block][tile], or one tile (see `grouped`)
  float* delta;                        // [query tiles][tile_size], d_o . o of each query
  Unit *k_rows, *k, *v;                // [tile]
  float *scores, *d_scores;            // [tile_size][tile_size]
  Unit *p_pairs, *ds_pairs, *ds_rows;  // [tile_size][tile_size]
  bool grouped;                        // several query heads share the keys, which are in one order
  int block_tiles;                     // tiles of a block of picked queries; 0: no pass has any
  // For patterns of several runs, else nullptr. Sums by token, [tiles of the sequence][tile_size][packed_width]: of dk
  // and dv over orders and query heads (nullptr: there is one of each), and of dq over two passes (nullptr: there is
  // one).
  float *dk_sums, *dv_sums, *dq_sums;
  float* lse;                 // [query tiles][tile_size], log-sum-exps of picked queries
  Unit* gathered;             // [2][tile], if the pattern picks keys for queries in the natural order
  Unit *picked_k, *picked_v;  // [key/value heads][tiles of a block][tile], rows of keys beside picked queries
};

// The place of query heads among those that share keys.
struct GroupSpan {
  bool first, last;
};

// Query heads of one sequence: neighbours, with all heads of a group that share keys, or of one group. Forward: each
// has the tiles of the pass.
struct PickedHeads {
  AttentionHead at[max_picked_heads];
  int count = 0;

  // RETURNS whether a head does not share keys with the head before it.
  [[gnu::always_inline]] bool begins_keys(int head) const { return head == 0 || at[head].k != at[head - 1].k; }
  // RETURNS the place of a head's keys among those of all.
  [[gnu::always_inline]] int kv_place(int head) const {
    int place = -1;
    for (int i = 0; i <= head; ++i) place += begins_keys(i) ? 1 : 0;
    return place;
  }
};

// Product c (+)= a b. Element (row, col) of a and b lies at row * row_stride + col * col_stride. REQUIRES: one stride
// is 1. With a depth of 0 the product is 0.
struct TiledLinear {
  int64_t rows, cols, depth;
  const void *a, *b;
  DType operand_dtype;
  int64_t a_row_stride, a_col_stride;  // a [rows, depth]
  int64_t b_row_stride, b_col_stride;  // b [depth, cols]
  const void* bias;                    // [cols] of the operand dtype or nullptr
  void* c;                             // rows contiguous
  DType c_dtype;
  int64_t c_stride;
  bool accumulate;                  // adds to c; REQUIRES c to be f32
  bool writes_past_caches = false;  // c is too large for caches
  // True: element (row, col) of c lies at col * c_stride + row. Read by linear_block alone.
  bool c_by_columns = false;
};

struct TiledLinearBuffers {
  Unit *a, *b, *staging;  // [tile_size][tile_size]
  float* c;               // [tile_size][tile_size]
};

constexpr int64_t linear_block_strip = 32;    // rows and columns that one sum has
constexpr int64_t linear_block_depth = 1024;  // terms of a sum before the next chunk is packed
constexpr int64_t linear_block_cols = 512;    // at most
constexpr int64_t linear_block_rows = 512;    // at most, of a product with more than linear_block_depth terms
// Blocks of so few rows may have more columns, if they fetch b: b is read from end to end, a few rows at a time.
constexpr int64_t linear_few_rows = 128, linear_few_rows_cols = 2048;

// A block of a product's result that one thread computes (MatrixKernels::linear_block).
struct LinearBlock {
  int64_t row, col, rows, cols;
  // Weights, which are read once, are fetched ahead: a if c_by_columns, else b.
  bool fetches = false;
  const void* next = nullptr;  // the weights of the block that the thread computes next, if any
};

struct LinearBlockBuffers {
  Unit* b;      // [linear_block_cols][linear_block_depth / 2]
  Unit* a;      // two strips of rows, [2][linear_block_strip][linear_block_depth / 2]
  float* sums;  // [linear_block_rows][linear_block_cols]
};

struct MatrixKernels {
  // Computes query tiles [first_tile, first_tile + count) of a pass. REQUIRES: count <= max_query_tiles.
  void (*attention_forward)(const AttentionHead& head, DType dtype, int64_t first_tile, int64_t count,
                            const AttentionForwardBuffers& buffers);
  // Computes one query head. The first of the heads that share keys overwrites the buffers' dk and dv, the last stores
  // them.
  void (*attention_backward)(const AttentionHead& head, DType dtype, const GroupSpan& span,
                             const AttentionBackwardBuffers& buffers);
  // Compute a block of picked queries of several heads of a sequence, whose keys are in the block, too (PickedHeads).
  void (*picked_forward)(const PickedHeads& heads, DType dtype, const PlaceRange& tiles,
                         const AttentionForwardBuffers& buffers);
  void (*picked_backward)(const PickedHeads& heads, DType dtype, const PlaceRange& tiles, const GroupSpan& span,
                          const AttentionBackwardBuffers& buffers);
  // Computes the tile of c that starts at (row, col).
  void (*tiled_linear)(const TiledLinear& op, int64_t row, int64_t col, const TiledLinearBuffers& buffers);
  // Computes a block of c for operands of bf16; nullptr where the CPU has no tiles. Its bits depend on the product
  // alone.
  void (*linear_block)(const TiledLinear& op, const LinearBlock& block, const LinearBlockBuffers& buffers);
  // Computes a block of c for float operands, and fetches the weights of `block.next`. REQUIRES: at most tile_size rows
  // and linear_few_rows_cols columns, or linear_block_rows rows and linear_block_cols columns; a depth above 0.
  void (*float_rows)(const TiledLinear& op, const LinearBlock& block, const LinearBlockBuffers& buffers);
  // sums[c] (+)= sum over rows of values[row][c], for cols <= column_sum_width: in float over groups of a few rows, in
  // double over the groups.
  void (*column_sums)(const void* values, DType dtype, int64_t stride, int64_t rows, int64_t cols, bool accumulate,
                      float* sums);
};

// RETURNS the best table that this CPU supports and ONEDNN_MAX_CPU_ISA allows.
const MatrixKernels& select_matrix_kernels();

// Makes select_matrix_kernels return this table, for tests; nullptr: its own choice again.
void use_matrix_kernels(const MatrixKernels* kernels);

}  // namespace gptrain::ops
