// Compiled once per instruction set; GPTRAIN_MATRIX_KERNELS is the name of its table.
#include "ops/cpu/kernels/attention_passes.h"
#include "ops/cpu/kernels/float_tiles.h"
#include "ops/cpu/kernels/linear_blocks.h"
#include "ops/cpu/kernels/matrix_kernel_table.h"
#include "ops/cpu/kernels/tile.h"

namespace gptrain::inline ops {
namespace {

// Template parameters for each element type: pairs of bfloat16 if the CPU multiplies them, else floats.
#ifdef __AVX512BF16__
constexpr bool bf16_pairs = true;
#else
constexpr bool bf16_pairs = tile_products;
#endif

void attention_forward(const AttentionHead& head, DType dtype, int64_t first_tile, int64_t count,
                       const AttentionForwardBuffers& buffers) {
  if (dtype == DType::bf16) {
    const TileScope tiles;
    forward_tiles<bf16, bf16_pairs>(head, first_tile, count, buffers);
  } else {
    forward_tiles<float, false>(head, first_tile, count, buffers);
  }
}

void attention_backward(const AttentionHead& head, DType dtype, const GroupSpan& span,
                        const AttentionBackwardBuffers& buffers) {
  if (dtype == DType::bf16) {
    const TileScope tiles;
    backward_head<bf16, bf16_pairs>(head, span, buffers);
  } else {
    backward_head<float, false>(head, span, buffers);
  }
}

void picked_forward(const PickedHeads& heads, DType dtype, const PlaceRange& block,
                    const AttentionForwardBuffers& buffers) {
  if (dtype == DType::bf16) {
    const TileScope tiles;
    picked_forward_of<bf16, bf16_pairs>(heads, block, buffers);
  } else {
    picked_forward_of<float, false>(heads, block, buffers);
  }
}

void picked_backward(const PickedHeads& heads, DType dtype, const PlaceRange& block, const GroupSpan& span,
                     const AttentionBackwardBuffers& buffers) {
  if (dtype == DType::bf16) {
    const TileScope tiles;
    picked_backward_of<bf16, bf16_pairs>(heads, block, span, buffers);
  } else {
    picked_backward_of<float, false>(heads, block, span, buffers);
  }
}

// Packs rows of the depth as [tile_size][tile_size] units or [tile_size / 2][tile_size] pairs, for sums over them.
template <bool pairs, typename T>
void pack_depth(Unit* out, const T* from, int64_t from_stride, int64_t depth, int64_t cols) {
  if constexpr (pairs) {
    pack_row_pairs(out, tile_size, from, from_stride, depth, cols);
  } else {
    pack_rows<false>(out, tile_size, from, from_stride, depth, cols);
  }
}

// Fetches a tile of an operand, whose rows are contiguous, before it is packed.
template <typename T>
void fetch_tile(const T* from, int64_t stride, int64_t rows, int64_t cols) {
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; col += line) __builtin_prefetch(from + row * stride + col);
}

// Writes a tile of c without reading it into a cache first. RETURNS false, and writes nothing, if its place in c has no
// whole cache lines.
bool write_past_caches([[maybe_unused]] float* c, [[maybe_unused]] int64_t stride, [[maybe_unused]] const float* tile,
                       [[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t cols) {
#ifdef __AVX512F__
  constexpr int64_t line_bytes = 64;
  if (cols % lanes != 0 || stride % lanes != 0 || reinterpret_cast<uintptr_t>(c) % line_bytes != 0) return false;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; col += lanes)
      _mm512_stream_ps(c + row * stride + col, reinterpret_cast<__m512>(load(tile + row * tile_size + col)));
  }
  _mm_sfence();
  return true;
#else
  return false;
#endif
}

// Adds the op's bias, or c if the op accumulates, to a tile of the result, and stores it.
template <typename T>
void store_tile_of(const TiledLinear& op, const CTile& at, float* tile) {
  if (op.bias != nullptr) {
    const T* const bias = static_cast<const T*>(op.bias) + at.col;
    for (int64_t r = 0; r < at.rows; ++r) {
      for (int64_t i = 0; i < at.cols; ++i) tile[r * tile_size + i] += as_float(bias[i]);
    }
  }
  if (op.c_dtype == DType::bf16) {
    bf16* const c = static_cast<bf16*>(op.c) + at.row * op.c_stride + at.col;
    store_rows(c, op.c_stride, tile, tile_size, at.rows, at.cols, 1.0F);
    return;
  }
  float* const c = static_cast<float*>(op.c) + at.row * op.c_stride + at.col;
  if (op.accumulate) {
    for (int64_t r = 0; r < at.rows; ++r) {
      for (int64_t i = 0; i < at.cols; ++i) tile[r * tile_size + i] += c[r * op.c_stride + i];
    }
  }
  if (op.writes_past_caches && write_past_caches(c, op.c_stride, tile, at.rows, at.cols)) return;
  store_rows(c, op.c_stride, tile, tile_size, at.rows, at.cols, 1.0F);
}

// Computes a tile of pairs whose columns of b are contiguous, as those of weights in a forward pass. They are read
// where they lie, as the left operand: the tile is computed with rows and columns swapped.
[[maybe_unused]] void tile_by_columns(const TiledLinear& op, const CTile& at, const TiledLinearBuffers& buffers) {
  constexpr int64_t tile_units = tile_size / 2;
  constexpr int64_t whole_lines = tile_products ? amx_rows : product_rows,
                    whole_depth = tile_products ? 2 * amx_units : 2;
  const bf16* const a = static_cast<const bf16*>(op.a) + at.row * op.a_row_stride;
  const bf16* const b = static_cast<const bf16*>(op.b) + at.col * op.b_col_stride;
  const bool has_units = op.b_col_stride % 2 == 0 && reinterpret_cast<uintptr_t>(b) % sizeof(Unit) == 0;
  const int64_t columns = round_up(at.rows, 16);
  for (int64_t first = 0; first < op.depth; first += tile_size) {
    const int64_t depth = smaller(tile_size, op.depth - first);
    pack_rows<true>(buffers.staging, tile_units, a + first, op.a_row_stride, at.rows, depth);
    transpose(buffers.a, tile_size, buffers.staging, tile_units, columns, tile_units);
    LeftOperand left{reinterpret_cast<const Unit*>(b + first), op.b_col_stride / 2, 1};
    if (!has_units || at.cols % whole_lines != 0 || depth % whole_depth != 0) {
      pack_rows<true>(buffers.b, tile_units, b + first, op.b_col_stride, at.cols, depth);
      left = {buffers.b, tile_units, 1};
    }
    if (const int64_t next = smaller(tile_size, op.depth - first - tile_size); next > 0)
      fetch_tile(b + first + tile_size, op.b_col_stride, at.cols, next);
    const ProductSizes sizes{round_up(at.cols, product_rows), columns, (depth + 1) / 2};
    product<true>({buffers.c, tile_size}, left, {buffers.a, tile_size}, sizes, first > 0);
  }
  transpose(buffers.staging, tile_size, reinterpret_cast<const Unit*>(buffers.c), tile_size, tile_size, columns);
  store_tile_of<bf16>(op, at, reinterpret_cast<float*>(buffers.staging));
}

template <typename T, bool pairs>
void tiled_linear_of(const TiledLinear& op, int64_t row, int64_t col, const TiledLinearBuffers& buffers) {
  constexpr int64_t tile_units = pairs ? tile_size / 2 : tile_size;  // units in the depth of a tile
  const CTile at{row, col, smaller(tile_size, op.rows - row), smaller(tile_size, op.cols - col)};
  const int64_t rows = at.rows, cols = at.cols;
  const T* const a = static_cast<const T*>(op.a);
  const T* const b = static_cast<const T*>(op.b);
  if (op.depth == 0) std::memset(buffers.c, 0, sizeof(float) * tile_size * tile_size);
  if constexpr (pairs) {
    if (op.depth > 0 && op.a_col_stride == 1 && op.b_row_stride == 1) return tile_by_columns(op, at, buffers);
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    if (op.depth > 0 && float_tile(op, at, buffers)) return;
    return store_tile_of<T>(op, at, buffers.c);
  }
  for (int64_t first = 0; first < op.depth; first += tile_size) {
    const int64_t depth = smaller(tile_size, op.depth - first);
    const T* const a_tile = a + row * op.a_row_stride + first * op.a_col_stride;
    LeftOperand left{buffers.a, tile_units, 1};
    if (op.a_col_stride == 1) {
      pack_rows<pairs>(buffers.a, tile_units, a_tile, op.a_row_stride, rows, depth);
    } else if constexpr (pairs && tile_products) {
      pack_depth<pairs>(buffers.staging, a_tile, op.a_col_stride, depth, rows);
      transpose(buffers.a, tile_units, buffers.staging, tile_size, tile_units, tile_size);
    } else {
      pack_depth<pairs>(buffers.a, a_tile, op.a_col_stride, depth, rows);
      left = {buffers.a, 1, tile_size};
    }
    const T* const b_tile = b + first * op.b_row_stride + col * op.b_col_stride;
    if (op.b_col_stride == 1) {
      pack_depth<pairs>(buffers.b, b_tile, op.b_row_stride, depth, cols);
    } else {
      pack_rows<pairs>(buffers.staging, tile_units, b_tile, op.b_col_stride, cols, depth);
      transpose(buffers.b, tile_size, buffers.staging, tile_units, tile_size, tile_units);
    }
    if (const int64_t next = smaller(tile_size, op.depth - first - tile_size); next > 0) {
      const T* const next_tile = b_tile + tile_size * op.b_row_stride;
      if (op.b_col_stride == 1) {
        fetch_tile(next_tile, op.b_row_stride, next, cols);
      } else {
        fetch_tile(next_tile, op.b_col_stride, cols, next);
      }
    }
    const ProductSizes sizes{round_up(rows, product_rows), round_up(cols, 16), pairs ? (depth + 1) / 2 : depth};
    product<pairs>({buffers.c, tile_size}, left, {buffers.b, tile_size}, sizes, first > 0);
  }
  store_tile_of<T>(op, at, buffers.c);
}

void tiled_linear(const TiledLinear& op, int64_t row, int64_t col, const TiledLinearBuffers& buffers) {
  if (op.operand_dtype == DType::bf16) {
    const TileScope tiles;
    tiled_linear_of<bf16, bf16_pairs>(op, row, col, buffers);
  } else {
    tiled_linear_of<float, false>(op, row, col, buffers);
  }
}

void linear_block(const TiledLinear& op, const LinearBlock& block, const LinearBlockBuffers& buffers) {
  const TileScope tiles;
  linear_block_of(op, block, buffers);
}

void float_rows(const TiledLinear& op, const LinearBlock& block, const LinearBlockBuffers& buffers) {
  constexpr int64_t packed = float_terms * tile_size;
  const TiledLinearBuffers tiles{buffers.a, buffers.b, buffers.b + packed, buffers.sums};
  float_block(op, block, tiles, [&](const CTile& at, float* sums) { store_tile_of<float>(op, at, sums); });
}

// Rows summed in float. Their sums are added in double, so that the error of a column's sum does not grow with the
// rows.
constexpr int64_t column_sum_rows = 16;

template <typename T>
void column_sums_of(const T* values, int64_t stride, int64_t rows, int64_t cols, bool accumulate, float* sums) {
  double total[column_sum_width] = {};
  for (int64_t first = 0; first < rows; first += column_sum_rows) {
    const int64_t end = first + column_sum_rows < rows ? first + column_sum_rows : rows;
    float partial[column_sum_width] = {};
    for (int64_t row = first; row < end; ++row) {
      const T* const from = values + row * stride;
      for (int64_t col = 0; col < cols; ++col) partial[col] += as_float(from[col]);
    }
    for (int64_t col = 0; col < cols; ++col) total[col] += static_cast<double>(partial[col]);
  }
  for (int64_t col = 0; col < cols; ++col)
    sums[col] = static_cast<float>(accumulate ? static_cast<double>(sums[col]) + total[col] : total[col]);
}

void column_sums(const void* values, DType dtype, int64_t stride, int64_t rows, int64_t cols, bool accumulate,
                 float* sums) {
  if (dtype == DType::bf16) {
    column_sums_of(static_cast<const bf16*>(values), stride, rows, cols, accumulate, sums);
  } else {
    column_sums_of(static_cast<const float*>(values), stride, rows, cols, accumulate, sums);
  }
}

}  // namespace

extern const MatrixKernels GPTRAIN_MATRIX_KERNELS;
const MatrixKernels GPTRAIN_MATRIX_KERNELS = {attention_forward, attention_backward,
                                              picked_forward,    picked_backward,
                                              tiled_linear,      tile_products ? linear_block : nullptr,
                                              float_rows,        column_sums};

}  // namespace gptrain::ops
