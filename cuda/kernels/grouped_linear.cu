// Products of all experts in one launch, with the numbers of their rows on the device. A block computes a tile of one
// expert's result: of 64 x 128 elements on tensor cores, or for f32 of 64 x 64 by multiply-adds.
//
// Tiles of rows are numbered through all experts: expert e's begin with number offsets[e] / 64 + e, which a block finds
// without adding up the tiles of earlier experts. Each expert has at least as many numbers as tiles, and R / 64 + E
// numbers suffice for R rows and E experts. A block whose number stands for no rows returns.
#include "kernels/attention_engines.h"
#include "kernels/product_tile.h"
#include "kernels/rows.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

constexpr int tile_rows = 64;

// Rows [first, end) of a matrix, or of the experts' matrices one below the other.
struct RowRange {
  int64_t first, end;
};

// The part of a product that a block computes.
struct TilePlace {
  int64_t expert;
  RowRange rows;      // all rows of the expert
  int64_t first_row;  // row of the tile, counted from rows.first
};

// Experts, and the tiles of their rows.
struct ExpertTiles {
  const int32_t* offsets;
  int64_t experts;

  explicit ExpertTiles(const Matrix& matrix) : offsets(matrix.as<const int32_t>()), experts(matrix.cols - 1) {}

  // RETURNS how many tiles of rows suffice for all counts.
  int64_t most(int64_t rows) const { return rows / tile_rows + experts; }
  __device__ int64_t first_tile(int64_t expert) const { return offsets[expert] / tile_rows + expert; }

  // Finds the place of a tile of rows: each thread looks at some experts. `found`: in shared memory. The tile is empty
  // if its expert has at most first_row rows. REQUIRES: all threads of the block call it.
  __device__ TilePlace place(int64_t tile, int& found) const {
    if (threadIdx.x == 0) found = static_cast<int>(experts);
    __syncthreads();
    for (int64_t e = threadIdx.x; e < experts; e += blockDim.x) {
      if (first_tile(e) <= tile && tile < first_tile(e + 1)) found = static_cast<int>(e);
    }
    __syncthreads();
    if (found == experts) return {};
    return {found, rows_of(found), (tile - first_tile(found)) * tile_rows};
  }
  __device__ RowRange rows_of(int64_t expert) const { return {offsets[expert], offsets[expert + 1]}; }
};

// An operand of one expert's product: a matrix of which one dim is a dim of the result, of `length` elements, and the
// other the depth of the sum. `rows_along_side`: each of its rows belongs to one row or column of the result, else to
// one element of the depth.
template <typename T, bool rows_along_side>
struct ExpertOperand {
  const T* data;
  int64_t stride, length;
  bool packs;  // rows consist of whole packs of 16 bytes

  __device__ static constexpr bool is_contiguous() { return !rows_along_side; }
  __device__ float at(int64_t index, int64_t depth) const {
    return to_float(rows_along_side ? data[index * stride + depth] : data[depth * stride + index]);
  }
  // RETURNS a tile of up to 64 x 64 elements.
  __device__ attention::TileSource<T> tile(int64_t first, int64_t first_depth, int64_t depth) const {
    const int along = at_most_a_tile(length - first), deep = at_most_a_tile(depth - first_depth);
    if constexpr (rows_along_side) return {data + first * stride + first_depth, stride, along, deep, packs};
    return {data + first_depth * stride + first, stride, deep, along, packs};
  }

 private:
  __device__ static int at_most_a_tile(int64_t size) {
    return static_cast<int>(size < attention::tile_size ? size : attention::tile_size);
  }
};

// One expert's product c [rows, cols] = a b, with the sum over `depth`.
template <typename T, typename C, bool a_along, bool b_along>
struct ExpertProduct {
  ExpertOperand<T, a_along> a;
  ExpertOperand<T, b_along> b;
  C* c;
  int64_t c_stride, depth;
};

// Writes `value` to an element of the result, or adds it.
template <typename C>
__device__ void write(C* to, float value, bool accumulate) {
  *to = rounded_to<C>(accumulate ? value + to_float(*to) : value);
}

// Tensor cores: four warps, each with 32 x 64 elements of the tile. A part of the depth of up to 64 is in shared memory
// while the next one is on its way to registers.
template <typename T, bool a_along, bool b_along>
struct MmaTile {
  using Engine = attention::MmaEngine<T>;
  static constexpr int threads = Engine::threads;
  static constexpr int cols = 128, slice = attention::tile_size;
  static constexpr int row_words = Engine::row_words, pair_words = Engine::pair_words;

  struct Shared {
    typename Engine::Tile a, b[2];
    int expert;
  };

  template <bool along>
  __device__ static void put(typename Engine::Tile& tile, const typename Engine::Own& fetched) {
    if constexpr (along) {
      Engine::put_for_scores(tile, fetched);
    } else {
      Engine::put_for_sums(tile, fetched);
    }
  }
  // RETURNS the lane's first pair of elements for row or column `index` of the result. `deeper` and `further`:
  // distances in words to the pair eight elements deeper, and to the pair eight rows or columns further.
  template <bool along>
  __device__ static const uint32_t* words(const typename Engine::Tile& tile, int index) {
    return tile.words + (along ? index * row_words + Engine::t() : Engine::t() * pair_words + index);
  }
  template <bool along>
  static constexpr int deeper = along ? 4 : 4 * pair_words;
  template <bool along>
  static constexpr int further = along ? 8 * row_words : 8;

  template <typename C>
  __device__ static void compute(const ExpertProduct<T, C, a_along, b_along>& of, int64_t first_row, int64_t first_col,
                                 bool accumulate, Shared& tiles) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int own_row = warp / 2 * 32, own_half = warp % 2;
    float sums[2][8][4] = {};
    auto a = Engine::fetch(of.a.tile(first_row, 0, of.depth));
    auto b_left = Engine::fetch(of.b.tile(first_col, 0, of.depth));
    auto b_right = Engine::fetch(of.b.tile(first_col + slice, 0, of.depth));
    for (int64_t first = 0; first < of.depth; first += slice) {
      put<a_along>(tiles.a, a);
      put<b_along>(tiles.b[0], b_left);
      put<b_along>(tiles.b[1], b_right);
      __syncthreads();
      if (first + slice < of.depth) {
        a = Engine::fetch(of.a.tile(first_row, first + slice, of.depth));
        b_left = Engine::fetch(of.b.tile(first_col, first + slice, of.depth));
        b_right = Engine::fetch(of.b.tile(first_col + slice, first + slice, of.depth));
      }
      const uint32_t* const a_words = words<a_along>(tiles.a, own_row + Engine::g());
      const uint32_t* const b_words = words<b_along>(tiles.b[own_half], Engine::g());
      const int depth = static_cast<int>(of.depth - first < slice ? of.depth - first : slice);
#pragma unroll
      for (int k = 0; k < slice / 16; ++k) {
        if (16 * k < depth) add(sums, a_words + 2 * k * deeper<a_along>, b_words + 2 * k * deeper<b_along>);
      }
      __syncthreads();  // until no thread reads the tiles
    }
    store_sums(of, first_row + own_row + Engine::g(), first_col + own_half * 64 + 2 * Engine::t(), accumulate, sums);
  }

 private:
  __device__ __forceinline__ static void add(float (&sums)[2][8][4], const uint32_t* a, const uint32_t* b) {
    uint32_t left[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      for (int n = 0; n < 4; ++n) left[i][n] = a[(2 * i + n % 2) * further<a_along> + n / 2 * deeper<a_along>];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t* const at = b + j * further<b_along>;
      const uint32_t front = at[0], back = at[deeper<b_along>];
      for (int i = 0; i < 2; ++i)
        mma_16x8x16<T>(sums[i][j][0], sums[i][j][1], sums[i][j][2], sums[i][j][3], left[i], front, back);
    }
  }

  // With `packs` the result's rows, too, consist of whole packs: both elements of a pair are inside it, or neither.
  template <typename C>
  __device__ static void store_sums(const ExpertProduct<T, C, a_along, b_along>& of, int64_t row, int64_t col,
                                    bool accumulate, const float (&sums)[2][8][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row + 8 * i >= of.a.length) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int64_t column = col + 8 * j;
        C* const to = of.c + (row + 8 * i) * of.c_stride + column;
        const float first = sums[i / 2][j][i % 2 * 2], second = sums[i / 2][j][i % 2 * 2 + 1];
        if (column + 1 < of.b.length && of.a.packs) {
          Pack<C, 2> pair = accumulate ? load<2>(to) : Pack<C, 2>{};
          pair.at[0] = rounded_to<C>(accumulate ? first + to_float(pair.at[0]) : first);
          pair.at[1] = rounded_to<C>(accumulate ? second + to_float(pair.at[1]) : second);
          store(to, pair);
          continue;
        }
        if (column < of.b.length) write(to, first, accumulate);
        if (column + 1 < of.b.length) write(to + 1, second, accumulate);
      }
    }
  }
};

// f32 by multiply-adds.
template <bool a_along, bool b_along>
struct FmaTile {
  static constexpr int threads = product_tile::threads;
  static constexpr int cols = product_tile::side;

  struct Shared {
    product_tile::Slices slices;
    int expert;
  };

  template <typename C>
  __device__ static void compute(const ExpertProduct<float, C, a_along, b_along>& of, int64_t first_row,
                                 int64_t first_col, bool accumulate, Shared& tiles) {
    using namespace product_tile;
    float sums[per_thread][per_thread] = {};
    for_each_product(of.a, first_row, of.b, first_col, of.depth, tiles.slices,
                     [&](int i, int j, float x, float y) { sums[i][j] += x * y; });
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      const int64_t row = first_row + product_tile::own_row() + i * threads_across;
#pragma unroll
      for (int j = 0; j < per_thread; ++j) {
        const int64_t col = first_col + own_column() + j * threads_across;
        if (row < of.a.length && col < of.b.length) write(of.c + row * of.c_stride + col, sums[i][j], accumulate);
      }
    }
  }
};
static_assert(product_tile::side == tile_rows);

template <typename T, bool a_along, bool b_along>
struct TileOf {
  using Type = MmaTile<T, a_along, b_along>;
};
template <bool a_along, bool b_along>
struct TileOf<float, a_along, b_along> {
  using Type = FmaTile<a_along, b_along>;
};
template <typename T, bool a_along, bool b_along>
using Tile = typename TileOf<T, a_along, b_along>::Type;

// Matrices of a product whose result has the experts' rows: c = a b, with a matrix b for each expert.
template <typename T>
struct RowProducts {
  ExpertTiles tiles;
  Rows<const T> a, b;
  Rows<T> c;
  int64_t cols, depth, b_rows;  // b_rows: of each expert
  bool packs;
};

// `b_along`: rows_along_side of b: true for the forward pass, false for the input's gradient.
template <typename T, bool b_along>
__global__ void __launch_bounds__(Tile<T, true, b_along>::threads) multiply_rows(RowProducts<T> op) {
  using Own = Tile<T, true, b_along>;
  auto& shared_tiles = shared<typename Own::Shared>();
  const int64_t across = (op.cols + Own::cols - 1) / Own::cols;
  const TilePlace place = op.tiles.place(blockIdx.x / across, shared_tiles.expert);
  const int64_t rows = place.rows.end - place.rows.first;
  if (place.first_row >= rows) return;
  const ExpertProduct<T, T, true, b_along> product = {
      {op.a.at(place.rows.first, 0), op.a.stride, rows, op.packs},
      {op.b.at(place.expert * op.b_rows, 0), op.b.stride, op.cols, op.packs},
      op.c.at(place.rows.first, 0),
      op.c.stride,
      op.depth};
  Own::compute(product, place.first_row, blockIdx.x % across * Own::cols, false, shared_tiles);
}

// Matrices of the products of the weights' gradients: c = a^T b over the rows of each expert.
template <typename T>
struct WeightProducts {
  ExpertTiles tiles;
  Rows<const T> a, b;
  Rows<float> c;
  int64_t rows, cols;  // size of each expert's result
  bool packs, accumulate;
};

template <typename T>
__global__ void __launch_bounds__(Tile<T, false, false>::threads) multiply_weights(WeightProducts<T> op) {
  using Own = Tile<T, false, false>;
  auto& shared_tiles = shared<typename Own::Shared>();
  const int64_t down = (op.rows + tile_rows - 1) / tile_rows, across = (op.cols + Own::cols - 1) / Own::cols;
  const int64_t expert = blockIdx.x / (down * across), tile = blockIdx.x % (down * across);
  const RowRange rows = op.tiles.rows_of(expert);
  if (rows.first == rows.end && op.accumulate) return;
  const ExpertProduct<T, float, false, false> product = {{op.a.at(rows.first, 0), op.a.stride, op.rows, op.packs},
                                                         {op.b.at(rows.first, 0), op.b.stride, op.cols, op.packs},
                                                         op.c.at(expert * op.rows, 0),
                                                         op.c.stride,
                                                         rows.end - rows.first};
  Own::compute(product, tile / across * tile_rows, tile % across * Own::cols, op.accumulate, shared_tiles);
}

// `b_along`: see multiply_rows.
template <bool b_along>
void run_rows(const Matrix& a, const Matrix& b, const Matrix& offsets, const Matrix& c, Stream stream) {
  const ExpertTiles tiles(offsets);
  with_type(c.dtype, [&](auto type) {
    using T = decltype(type);
    using Own = Tile<T, true, b_along>;
    const int64_t across = (c.cols + Own::cols - 1) / Own::cols;
    const RowProducts<T> op = {tiles,  Rows<const T>(a), Rows<const T>(b),       Rows<T>(c),
                               c.cols, a.cols,           b.rows / tiles.experts, in_packs({a, b, c})};
    launch(stream, {tiles.most(a.rows) * across, Own::threads, sizeof(typename Own::Shared)}, multiply_rows<T, b_along>,
           op);
  });
}

}  // namespace

void cuda_run(const GroupedLinearForward& op, Stream stream, std::byte*) {
  run_rows<true>(op.x, op.w, op.offsets, op.y, stream);
}

void cuda_run(const GroupedLinearBackwardInput& op, Stream stream, std::byte*) {
  run_rows<false>(op.dy, op.w, op.offsets, op.dx, stream);
}

void cuda_run(const GroupedLinearBackwardWeight& op, Stream stream, std::byte*) {
  const ExpertTiles tiles(op.offsets);
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    using Own = Tile<T, false, false>;
    const WeightProducts<T> products = {
        tiles,     Rows<const T>(op.dy),           Rows<const T>(op.x), Rows<float>(op.dw), op.dy.cols,
        op.x.cols, in_packs({op.dy, op.x, op.dw}), op.accumulate};
    const int64_t down = (op.dy.cols + tile_rows - 1) / tile_rows, across = (op.x.cols + Own::cols - 1) / Own::cols;
    launch(stream, {tiles.experts * down * across, Own::threads, sizeof(typename Own::Shared)}, multiply_weights<T>,
           products);
  });
}

}  // namespace gptrain::cuda
