// FP8 codes of a bf16 matrix, as stored and transposed, tile by tile, with its column sums; and the amax of a matrix
// that comes without one.
#include "base/fp8.h"
#include "kernels/amax.h"
#include "kernels/column_sums.h"
#include "kernels/rows.h"
#include "kernels/run.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

constexpr unsigned threads = 256;
constexpr int tile = 128;             // rows and columns of a tile of x
constexpr int group = 4;              // rows that a thread has at once; their codes in a column form one word
constexpr int groups = tile / group;  // words per column of the tile
constexpr int packs = tile / pack_width;
constexpr int packs_of_thread = groups * packs / static_cast<int>(threads);
static_assert(tile == gpu_quantize_tile && threads % (2 * packs) == 0);

__global__ void find_amax(Rows<const bf16> x, int64_t rows, int64_t cols, float* parts) {
  RunningAmax amax(parts);
  for_each_pack<pack_width>(rows, cols,
                            [&](int64_t row, int64_t column) { amax.see(load<pack_width>(x.at(row, column))); });
  amax.leave();
}

// Returns the largest of the parts on every thread of the block.
__device__ float largest_of(const float* parts, WarpMaxima& maxima) {
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

// Codes of the tile by columns of x, in words of `group` rows. Columns are padded by one word, and words are rotated by
// two for every 32 columns, so that neither reads nor writes of a warp have bank conflicts.
struct Tile {
  WarpMaxima maxima;
  uint32_t words[tile][groups + 1];
  float sums[threads / 32][tile];  // column sums over each warp's rows

  __device__ uint32_t& word(int column, int rows) { return words[column][(rows + column / 32 * 2) % groups]; }
};

struct QuantizedOutputs {
  uint8_t* rows;        // null: not requested
  uint8_t* transposed;  // null: not requested
  int64_t rows_stride, transposed_stride;
  float* inverse_scale;
  float* partials;  // [row tiles, cols]: column sums of each tile; null: not requested
};

// Writes the column sums of a tile from the threads' sums over their rows in eight columns. Both halves of a warp have
// the same columns.
__device__ void leave_column_sums(Tile& shared_tile, const float (&sums)[pack_width], int64_t columns_left,
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

template <typename T>
__global__ void __launch_bounds__(threads)
    quantize(Rows<const bf16> x, int64_t num_rows, int64_t num_cols, const float* amax, QuantizedOutputs out) {
  Tile& shared_tile = shared<Tile>();
  const float scale = fp8_scale<T>(largest_of(amax, shared_tile.maxima));
  if (blockIdx.x == 0 && threadIdx.x == 0) *out.inverse_scale = 1.0F / scale;
  const int64_t tiles_across = (num_cols + tile - 1) / tile;
  const int64_t first_row = blockIdx.x / tiles_across * tile;
  const int64_t first_column = blockIdx.x % tiles_across * tile;
  float sums[pack_width] = {};
#pragma unroll
  for (int part = 0; part < packs_of_thread; ++part) {
    const int index = part * static_cast<int>(threads) + static_cast<int>(threadIdx.x);
    const int column = index % packs * pack_width;
    const int rows = index / packs;
    if (first_column + column >= num_cols || first_row + rows * group >= num_rows) continue;
    uint32_t columns[pack_width] = {};
    Pack<bf16, pack_width> in[group];
#pragma unroll
    for (int i = 0; i < group; ++i) in[i] = load<pack_width>(x.at(first_row + rows * group + i, first_column + column));
#pragma unroll
    for (int i = 0; i < group; ++i) {
      for (int j = 0; j < pack_width; ++j) sums[j] += to_float(in[i].at[j]);
      Pack<uint32_t, 2> row = {};
#pragma unroll
      for (int j = 0; j < pack_width; j += 2) {
        const uint32_t two = codes_of<T>(to_float(in[i].at[j]) * scale, to_float(in[i].at[j + 1]) * scale);
        row.at[j / 4] |= two << (j % 4 * 8);
        columns[j] |= (two & 0xffU) << (i * 8);
        columns[j + 1] |= two >> 8 << (i * 8);
      }
      if (out.rows != nullptr) {
        uint8_t* const to = out.rows + (first_row + rows * group + i) * out.rows_stride + first_column + column;
        store(reinterpret_cast<uint32_t*>(to), row);
      }
    }
#pragma unroll
    for (int j = 0; j < pack_width; ++j) shared_tile.word(column + j, rows) = columns[j];
  }
  __syncthreads();
  if (out.partials != nullptr) {
    leave_column_sums(shared_tile, sums, num_cols - first_column,
                      out.partials + first_row / tile * num_cols + first_column);
  }
  if (out.transposed == nullptr) return;
  for (int index = static_cast<int>(threadIdx.x); index < tile * groups; index += static_cast<int>(threads)) {
    const int column = index / groups;
    const int rows = index % groups;
    if (first_column + column >= num_cols || first_row + rows * group >= num_rows) continue;
    uint8_t* const to = out.transposed + (first_column + column) * out.transposed_stride + first_row + rows * group;
    *reinterpret_cast<uint32_t*>(to) = shared_tile.word(column, rows);
  }
}

template <typename T>
void launch_quantize(const Quantize& op, Stream stream, float* partials) {
  const int64_t tiles = (op.x.rows + tile - 1) / tile * ((op.x.cols + tile - 1) / tile);
  launch(stream, {tiles, threads, sizeof(Tile)}, quantize<T>, Rows<const bf16>(op.x), op.x.rows, op.x.cols,
         op.amax.as<const float>(),
         QuantizedOutputs{op.rows.as<uint8_t>(), op.transposed.as<uint8_t>(), op.rows.stride, op.transposed.stride,
                          op.inverse_scale.as<float>(), partials});
}

}  // namespace

void cuda_run(const Amax& op, Stream stream, std::byte*) {
  LaunchShape shape = shape_of_elements(op.x.rows, op.x.cols, pack_width);
  shape.shared_bytes = sizeof(WarpMaxima);
  launch(stream, shape, find_amax, Rows<const bf16>(op.x), op.x.rows, op.x.cols, op.amax.as<float>());
}

void cuda_run(const Quantize& op, Stream stream, std::byte* scratch) {
  auto* const partials = op.column_sums.given() ? reinterpret_cast<float*>(scratch) : nullptr;
  if ((op.rows.given() ? op.rows.dtype : op.transposed.dtype) == DType::f8e4m3) {
    launch_quantize<f8e4m3>(op, stream, partials);
  } else {
    launch_quantize<f8e5m2>(op, stream, partials);
  }
  if (partials == nullptr) return;
  cuda_run(
      PartialSums<double>{partials, gpu_quantize_row_tiles(op.x.rows), op.x.cols, op.column_sums.as<double>(), nullptr},
      stream);
}

}  // namespace gptrain::cuda
