// FP8 codes of a bf16 matrix, as they are and transposed, tile by tile, with its column sums and its amax. The matrix
// is stored, or computed on the way (`Values`; see activation_values.h).
#pragma once

#include "base/fp8.h"
#include "kernels/amax.h"
#include "kernels/column_sums.h"
#include "kernels/rows.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {

namespace fp8_copies {

constexpr unsigned threads = 256;
constexpr int tile = 128;             // rows and columns of a tile
constexpr int group = 4;              // rows that a thread has at once; their codes in a column form one word
constexpr int groups = tile / group;  // words per column of the tile
constexpr int packs = tile / pack_width;
constexpr int packs_of_thread = groups * packs / static_cast<int>(threads);
static_assert(tile == gpu_quantize_tile && threads % (2 * packs) == 0);

// Returns the largest of the parts of an amax on every thread of the block.
__device__ inline float largest_of(const float* parts, int64_t count, WarpMaxima& maxima) {
  if (count == 1) return *parts;
  constexpr int width = 4;
  static_assert(amax_parts % width == 0);
  uint32_t largest = 0;  // non-negative floats are ordered as their bits
  for (int64_t part = threadIdx.x * width; part < amax_parts; part += threads * width) {
    const auto pack = load<width>(parts + part);
    for (const float value : pack.at) {
      const auto bits = std::bit_cast<uint32_t>(value);
      largest = bits > largest ? bits : largest;
    }
  }
  return std::bit_cast<float>(block_maximum(largest, maxima));
}

// Returns the codes of two neighbours, the first in the lower byte.
template <typename T>
__device__ uint32_t codes_of(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t codes;
  if constexpr (std::is_same_v<T, f8e4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  }
  return codes;
#else
  return to_fp8<T>(first).bits | uint32_t{to_fp8<T>(second).bits} << 8;
#endif
}

// Codes of a tile by its columns, in words of `group` rows. Columns are padded by one word, and words are rotated by
// two for every 32 columns, so that neither reads nor writes of a warp have bank conflicts.
struct Tile {
  uint32_t words[tile][groups + 1];
  float sums[threads / 32][tile];  // column sums over each warp's rows

  __device__ uint32_t& word(int column, int rows) { return words[column][(rows + column / 32 * 2) % groups]; }
};

template <int parts>
struct Shared {
  WarpMaxima maxima;
  Tile tiles[parts];
};

struct Outputs {
  uint8_t* rows;        // null: not requested
  uint8_t* transposed;  // null: not requested
  int64_t rows_stride, transposed_stride;
  float* inverse_scale;
  float* partials;  // [row tiles, all columns]: column sums of each tile; null: not requested
  float* largest;   // null: not requested
};

// A thread's part of a tile: codes of `group` rows in the columns of a pack, by columns, and the columns' sums.
struct GroupCodes {
  uint32_t columns[pack_width] = {};
  float* sums;

  template <typename T>
  __device__ void add(const Pack<bf16, pack_width>& in, int row_of_group, float scale, uint8_t* row_codes) {
    for (int j = 0; j < pack_width; ++j) sums[j] += to_float(in.at[j]);
    Pack<uint32_t, 2> row = {};
#pragma unroll
    for (int j = 0; j < pack_width; j += 2) {
      const uint32_t two =
          codes_of<T>(scaled_for_fp8(to_float(in.at[j]), scale), scaled_for_fp8(to_float(in.at[j + 1]), scale));
      row.at[j / 4] |= two << (j % 4 * 8);
      columns[j] |= (two & 0xffU) << (row_of_group * 8);
      columns[j + 1] |= two >> 8 << (row_of_group * 8);
    }
    if (row_codes != nullptr) store(reinterpret_cast<uint32_t*>(row_codes), row);
  }
};

// Writes the column sums of a tile from the threads' sums over their rows in eight columns. Both halves of a warp have
// the same columns.
__device__ inline void leave_column_sums(Tile& shared_tile, const float (&sums)[pack_width], int64_t columns_left,
                                         float* partials) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int j = 0; j < pack_width; ++j) {
    const float both = sums[j] + __shfl_xor_sync(0xffffffff, sums[j], packs);
    if (lane < packs) shared_tile.sums[warp][lane * pack_width + j] = both;
  }
  __syncthreads();
  if (threadIdx.x >= tile || threadIdx.x >= columns_left) return;
  double sum = 0;
  for (const auto& of_warp : shared_tile.sums) sum += static_cast<double>(of_warp[threadIdx.x]);
  partials[threadIdx.x] = static_cast<float>(sum);
}

// A block writes a tile of each part. `cols`: columns of a part.
template <typename T, typename Values>
__global__ void __launch_bounds__(threads)
    quantize(Values source, int64_t num_rows, int64_t cols, const float* amax, int64_t amax_count, Outputs out) {
  constexpr int parts = Values::parts;
  Shared<parts>& memory = shared<Shared<parts>>();
  const float scale = fp8_scale<T>(largest_of(amax, amax_count, memory.maxima));
  if (blockIdx.x == 0 && threadIdx.x == 0) *out.inverse_scale = 1.0F / scale;
  const int64_t tiles_across = (cols + tile - 1) / tile;
  const int64_t first_row = blockIdx.x / tiles_across * tile;
  const int64_t first_column = blockIdx.x % tiles_across * tile;
  float sums[parts][pack_width] = {};
  RunningAmax running(out.largest);
#pragma unroll
  for (int turn = 0; turn < packs_of_thread; ++turn) {
    const int index = turn * static_cast<int>(threads) + static_cast<int>(threadIdx.x);
    const int column = index % packs * pack_width;
    const int rows = index / packs;
    if (first_column + column >= cols || first_row + rows * group >= num_rows) continue;
    Pack<bf16, pack_width> in[group][parts];
#pragma unroll
    for (int i = 0; i < group; ++i) source.values(first_row + rows * group + i, first_column + column, in[i]);
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      GroupCodes codes{.sums = sums[part]};
#pragma unroll
      for (int i = 0; i < group; ++i) {
        running.see(in[i][part]);
        uint8_t* const to = out.rows == nullptr ? nullptr
                                                : out.rows + (first_row + rows * group + i) * out.rows_stride +
                                                      part * cols + first_column + column;
        codes.template add<T>(in[i][part], i, scale, to);
      }
#pragma unroll
      for (int j = 0; j < pack_width; ++j) memory.tiles[part].word(column + j, rows) = codes.columns[j];
    }
  }
  __syncthreads();
  for (int part = 0; part < parts && out.partials != nullptr; ++part) {
    leave_column_sums(memory.tiles[part], sums[part], cols - first_column,
                      out.partials + first_row / tile * (parts * cols) + part * cols + first_column);
  }
  for (int part = 0; part < parts && out.transposed != nullptr; ++part) {
    for (int index = static_cast<int>(threadIdx.x); index < tile * groups; index += static_cast<int>(threads)) {
      const int column = index / groups;
      const int rows = index % groups;
      if (first_column + column >= cols || first_row + rows * group >= num_rows) continue;
      uint8_t* const to =
          out.transposed + (part * cols + first_column + column) * out.transposed_stride + first_row + rows * group;
      *reinterpret_cast<uint32_t*>(to) = memory.tiles[part].word(column, rows);
    }
  }
  running.raise(memory.maxima);
}

}  // namespace fp8_copies

// Writes FP8 copies of a matrix of `rows` rows, whose parts have `cols` columns each. `scratch`: gpu_fp8_scratch_bytes.
template <typename Values>
void launch_fp8_copies(const Values& values, int64_t rows, int64_t cols, const Fp8Copies& to, Stream stream,
                       std::byte* scratch) {
  using namespace fp8_copies;
  auto* const partials = to.column_sums.given() ? reinterpret_cast<float*>(scratch) : nullptr;
  const LaunchShape shape{(rows + tile - 1) / tile * ((cols + tile - 1) / tile), threads,
                          sizeof(Shared<Values::parts>)};
  const Outputs out{to.rows.as<uint8_t>(), to.transposed.as<uint8_t>(),  to.rows.stride,
                    to.transposed.stride,  to.inverse_scale.as<float>(), partials,
                    to.largest.as<float>()};
  auto* const kernel = to.dtype() == DType::f8e4m3 ? quantize<f8e4m3, Values> : quantize<f8e5m2, Values>;
  launch(stream, shape, kernel, values, rows, cols, to.amax.as<const float>(), to.amax.cols, out);
  if (partials == nullptr) return;
  cuda_run(PartialSums<double>{partials, gpu_quantize_row_tiles(rows), Values::parts * cols,
                               to.column_sums.as<double>(), nullptr},
           stream);
}

}  // namespace gptrain::cuda
