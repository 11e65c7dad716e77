// Products of 64 x 64 tiles in shared memory, the building blocks of the attention kernels.
// An engine defines how a block's threads divide a product (each holds `rows` x `cols` elements in registers) and how
// tiles lie in shared memory. The kernels, written once for all engines, use two products:
//   scores        left right^T, a sum over features: both tiles have tokens as rows
//   weighted sums weights right, a sum over right's tokens: the weights are the elements of an earlier product
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/mma.h"
#include "kernels/values.h"
#include "ops/key_tiles.h"

namespace gptrain::inline cuda::attention {

constexpr int tile_size = attention_tile;

// A tile of up to 64 x 64 elements of a [tokens, features] matrix.
template <typename T>
struct TileSource {
  using Element = T;

  const T* data;
  int64_t stride;
  int rows, cols;  // elements that exist; the rest counts as zero
  bool packs;      // true: rows are whole packs of 16 bytes

  __device__ const T* row(int i) const { return data + i * stride; }
};

// A pack of 16 bytes as whole registers: nvcc keeps each 16-bit element of a Pack<T, 8> in a register of its own.
using Words = Pack<uint32_t, 4>;

// The elements of a tile that a thread loads: some packs, and those of the next token below them.
template <typename T, int threads>
struct Fetched {
  static constexpr int width = 16 / sizeof(T);
  static constexpr int packs_of_row = tile_size / width;
  static constexpr int count = tile_size / 2 * packs_of_row / threads;

  Words even[count], odd[count];

  // Row and column of the thread's i-th packs.
  __device__ static int even_row(int i) { return (i * threads + static_cast<int>(threadIdx.x)) / packs_of_row * 2; }
  __device__ static int column(int i) { return (i * threads + static_cast<int>(threadIdx.x)) % packs_of_row * width; }
};

// Not inlined, so that the code for rows without whole packs takes no registers from the fast path.
template <typename T>
[[gnu::noinline]] __device__ Words fetch_elements(const T* place, int count) {
  Pack<T, 16 / sizeof(T)> pack{};
#pragma unroll
  for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i) {
    if (i < count) pack.at[i] = place[i];
  }
  return std::bit_cast<Words>(pack);
}

// `Source`: TileSource, or another type with its members. A row that is null counts as zero.
template <typename Source>
__device__ Words fetch_pack(const Source& from, int row, int column) {
  if (row >= from.rows || column >= from.cols) return {};
  const auto* const place = from.row(row);
  if (place == nullptr) return {};
  if (from.packs) return load<4>(reinterpret_cast<const uint32_t*>(place + column));
  return fetch_elements(place + column, from.cols - column);
}

template <int threads, typename Source>
__device__ __forceinline__ auto fetch_tile(const Source& from) {
  using Own = Fetched<typename Source::Element, threads>;
  Own fetched;
#pragma unroll
  for (int i = 0; i < Own::count; ++i) {
    fetched.even[i] = fetch_pack(from, Own::even_row(i), Own::column(i));
    fetched.odd[i] = fetch_pack(from, Own::even_row(i) + 1, Own::column(i));
  }
  return fetched;
}

// f32 by multiply-adds: 16 x 16 threads with 4 x 4 elements each. The 16 threads of a row are half a warp.
template <typename T>
struct FmaEngine {
  using Element = T;
  static constexpr int threads = 256;
  static constexpr int rows = 4, cols = 4;
  static constexpr int lanes_of_row = 16;
  // Left tiles are loaded again for every product: they are too large to stay in shared memory.
  static constexpr bool keeps_left = false;

  // Rows are padded by four floats, so that neighbouring rows start in different banks.
  struct Tile {
    alignas(16) float at[tile_size][tile_size + 4];
  };
  struct Values {
    float at[rows][cols] = {};
  };
  using Weights = Values;

  __device__ static int x() { return static_cast<int>(threadIdx.x) % 16; }
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / 16 + 16 * i; }
  __device__ static int score_column(int j) { return x() + 16 * j; }
  __device__ static int feature(int j) { return 4 * x() + j; }

  template <typename Source>
  __device__ static Fetched<T, threads> fetch(const Source& from) {
    return fetch_tile<threads>(from);
  }

  __device__ __forceinline__ static void put_for_scores(Tile& tile, const Fetched<T, threads>& fetched) {
    using Own = Fetched<T, threads>;
#pragma unroll
    for (int i = 0; i < Own::count; ++i) {
      put_row(&tile.at[Own::even_row(i)][Own::column(i)], fetched.even[i]);
      put_row(&tile.at[Own::even_row(i) + 1][Own::column(i)], fetched.odd[i]);
    }
  }
  __device__ __forceinline__ static void put_for_sums(Tile& tile, const Fetched<T, threads>& fetched) {
    put_for_scores(tile, fetched);
  }

  __device__ __forceinline__ static Weights weights_of(const Values& values) { return values; }
  __device__ __forceinline__ static void put_weights(Tile& tile, const Weights& weights) {
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < cols; ++j) tile.at[row(i)][score_column(j)] = weights.at[i][j];
  }

  __device__ __forceinline__ static void add_scores(Values& values, const Tile& left, const Tile& right, int depth) {
#pragma unroll 2
    for (int k = 0; k < depth; k += 4) {
      Pack<float, 4> a[rows], b[cols];
      for (int i = 0; i < rows; ++i) a[i] = load<4>(&left.at[row(i)][k]);
      for (int j = 0; j < cols; ++j) b[j] = load<4>(&right.at[score_column(j)][k]);
      for (int n = 0; n < 4; ++n)
        for (int i = 0; i < rows; ++i)
          for (int j = 0; j < cols; ++j) values.at[i][j] += a[i].at[n] * b[j].at[n];
    }
  }

  // All threads have stored the weights in `left`. Columns past the last are computed like any other.
  __device__ __forceinline__ static void add_weighted(Values& values, const Tile& left, const Weights&,
                                                      const Tile& right, int depth, int) {
#pragma unroll 2
    for (int k = 0; k < depth; k += 4) {
      Pack<float, 4> a[rows], b[4];
      for (int i = 0; i < rows; ++i) a[i] = load<4>(&left.at[row(i)][k]);
      for (int n = 0; n < 4; ++n) b[n] = load<4>(&right.at[k + n][feature(0)]);
      for (int n = 0; n < 4; ++n)
        for (int i = 0; i < rows; ++i)
          for (int j = 0; j < cols; ++j) values.at[i][j] += a[i].at[n] * b[n].at[j];
    }
  }

 private:
  __device__ static void put_row(float* to, const Words& words) {
    constexpr int width = 16 / sizeof(T);
    const auto from = std::bit_cast<Pack<T, width>>(words);
    for (int first = 0; first < width; first += 4) {
      Pack<float, 4> values;
      for (int n = 0; n < 4; ++n) values.at[n] = to_float(from.at[first + n]);
      store(to + first, values);
    }
  }
};

// bf16 or f16 by tensor cores: four warps with 16 rows each. A thread's elements are those of the fragments (see
// mma.h): rows g and g + 8, and columns 2t and 2t + 1 of every eight. The four threads of a row are neighbours.
template <typename T>
struct MmaEngine {
  using Element = T;
  static constexpr int threads = 128;
  static constexpr int rows = 2, cols = 16;
  static constexpr int lanes_of_row = 4;
  static constexpr bool keeps_left = true;

  // Pairs of numbers along the summed dimension: features for scores, [64][32 + 4]; tokens for weighted sums, [32][64 +
  // 8]. With this padding the lanes of a fragment read 32 different banks.
  static constexpr int row_words = tile_size / 2 + 4;
  static constexpr int pair_words = tile_size + 8;
  struct Tile {
    alignas(16) uint32_t words[tile_size * row_words];
  };
  static_assert(tile_size * row_words == tile_size / 2 * pair_words);

  struct Values {
    float at[rows][cols] = {};
  };
  // A product's elements in the layout of a left operand: the thread that computed them already holds them.
  struct Weights {
    uint32_t at[4][4];
  };

  __device__ static int g() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static int t() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / 32 * 16 + g() + 8 * i; }
  __device__ static int score_column(int j) { return j / 2 * 8 + 2 * t() + j % 2; }
  __device__ static int feature(int j) { return score_column(j); }

  using Own = Fetched<T, threads>;
  template <typename Source>
  __device__ static Own fetch(const Source& from) {
    return fetch_tile<threads>(from);
  }

  __device__ __forceinline__ static void put_for_scores(Tile& tile, const Own& fetched) {
#pragma unroll
    for (int i = 0; i < Own::count; ++i) {
      uint32_t* const to = tile.words + Own::even_row(i) * row_words + Own::column(i) / 2;
      store(to, fetched.even[i]);
      store(to + row_words, fetched.odd[i]);
    }
  }
  __device__ __forceinline__ static void put_for_sums(Tile& tile, const Own& fetched) {
#pragma unroll
    for (int i = 0; i < Own::count; ++i) {
      const Words &even = fetched.even[i], &odd = fetched.odd[i];
      uint32_t* const to = tile.words + Own::even_row(i) / 2 * pair_words + Own::column(i);
      Words pairs[2];
      for (int n = 0; n < 4; ++n) {
        pairs[n / 2].at[n % 2 * 2] = (even.at[n] & 0xffffU) | (odd.at[n] << 16);
        pairs[n / 2].at[n % 2 * 2 + 1] = (even.at[n] >> 16) | (odd.at[n] & 0xffff0000U);
      }
      store(to, pairs[0]);
      store(to + 4, pairs[1]);
    }
  }

  __device__ __forceinline__ static Weights weights_of(const Values& values) {
    Weights weights;
#pragma unroll
    for (int k = 0; k < 4; ++k)
      for (int n = 0; n < 4; ++n)
        weights.at[k][n] =
            rounded_pair<T>(values.at[n % 2][4 * k + n / 2 * 2], values.at[n % 2][4 * k + n / 2 * 2 + 1]);
    return weights;
  }
  __device__ __forceinline__ static void put_weights(Tile&, const Weights&) {}

  __device__ __forceinline__ static void add_scores(Values& values, const Tile& left, const Tile& right, int depth) {
    const uint32_t* const a_words = left.words + row(0) * row_words + t();
    const uint32_t* const b_words = right.words + g() * row_words + t();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (16 * k >= depth) continue;
      const uint32_t* const a_k = a_words + 8 * k;
      const uint32_t a[4] = {a_k[0], a_k[8 * row_words], a_k[4], a_k[8 * row_words + 4]};
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const uint32_t* const b = b_words + 8 * n * row_words + 8 * k;
        mma_16x8x16<T>(values.at[0][2 * n], values.at[0][2 * n + 1], values.at[1][2 * n], values.at[1][2 * n + 1], a,
                       b[0], b[4]);
      }
    }
  }

  __device__ __forceinline__ static void add_weighted(Values& values, const Tile&, const Weights& weights,
                                                      const Tile& right, int depth, int columns) {
    const uint32_t* const b_words = right.words + t() * pair_words + g();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (16 * k >= depth) continue;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if (8 * n >= columns) continue;
        const uint32_t* const b = b_words + 8 * k * pair_words + 8 * n;
        mma_16x8x16<T>(values.at[0][2 * n], values.at[0][2 * n + 1], values.at[1][2 * n], values.at[1][2 * n + 1],
                       weights.at[k], b[0], b[4 * pair_words]);
      }
    }
  }
};

// Blocks that a multiprocessor should hold at a time, which bounds the registers per thread: those of the `products` it
// keeps and some more.
template <typename E>
constexpr int blocks_side_by_side(int products) {
  constexpr int registers = 65536;
  constexpr int others = 64;
  return registers / (E::threads * (products * E::rows * E::cols + others));
}

}  // namespace gptrain::cuda::attention
