#include <algorithm>
#include <cmath>

#include "base/fp8.h"
#include "base/philox.h"
#include "kernels/amax.h"
#include "kernels/product_check.h"
#include "kernels/product_tile.h"
#include "kernels/rows.h"

namespace gptrain::inline cuda {
namespace {

using namespace product_tile;

// Results are filled with one of these before the library's product runs: a product that accumulates adds to
// start_of_sums, whose bytes are equal, so that it is a number in every type (about 0.75 in f32 and bf16); another one
// must overwrite every nothing_written.
constexpr uint32_t start_of_sums = 0x3f3f3f3f;
constexpr uint32_t nothing_written = 0xffffffff;

// A matrix of any type; without data all ones.
struct AnyMatrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0, stride = 0;

  AnyMatrix() = default;
  explicit AnyMatrix(const Matrix& matrix)
      : data(matrix.data), dtype(matrix.dtype), rows(matrix.rows), cols(matrix.cols), stride(matrix.stride) {}

  template <typename T>
  __device__ float read(int64_t index) const {
    return to_float(static_cast<const T*>(data)[index]);
  }
  __device__ float at(int64_t row, int64_t col) const {
    if (data == nullptr) return 1;
    const int64_t index = row * stride + col;
    switch (dtype) {
      case DType::bf16:
        return read<bf16>(index);
      case DType::f16:
        return read<f16>(index);
      case DType::f8e4m3:
        return read<f8e4m3>(index);
      case DType::f8e5m2:
        return read<f8e5m2>(index);
      default:
        return read<float>(index);
    }
  }
};

struct AnyFactor {
  AnyMatrix matrix;
  bool along_rows;  // true: the matrix's rows lie along the result's side
  int64_t length;

  AnyFactor(const Matrix& from, bool along_rows_)
      : matrix(from), along_rows(along_rows_), length(along_rows_ ? from.rows : from.cols) {}
  __device__ bool is_contiguous() const { return !along_rows; }
  __device__ float at(int64_t index, int64_t depth) const {
    return along_rows ? matrix.at(index, depth) : matrix.at(depth, index);
  }
};

// Error bounds of a sum. `of_magnitudes` is relative to the sum of the terms' magnitudes. The others are truncations
// towards zero per term, relative to the sum: `of_results` always, `of_products` for terms of one sign.
struct SumAccuracy {
  float of_magnitudes, of_results, of_products;
};

// Derivation. In each step a tensor core aligns the products and the sum so far to the largest of them, truncates bits
// a certain distance below its first bit, adds, and truncates the result. Hopper (arXiv 2511.10909): for f16 and bf16,
// 16 products per step with 25 bits and a result of 23 bits; for FP8, whose sum stays in the tensor core, 32 products
// per step and 13 bits for both. Truncations of products of opposite signs cancel, except for the surplus of one sign,
// a share of about |sum| / magnitude; `of_magnitudes` covers the rest. While a sum of one sign grows evenly to S, its
// power of two is 3/8 S on average, at most. So each product loses at most 3/8 2^-25 S (FP8: 3/8 2^-13 S), and each
// result, once per 16 (32) terms, 3/8 2^-23 S (3/8 2^-13 S). The constants are the next powers of two. For a sum of
// random signs, whose square is about magnitude^2 / depth, they allow hardly more than `of_magnitudes`.
constexpr SumAccuracy f32_sums{.of_magnitudes = 0x1p-18F, .of_results = 0x1p-28F, .of_products = 0x1p-26F};
constexpr SumAccuracy fp8_sums{.of_magnitudes = 0x1p-10F, .of_results = 0x1p-19F, .of_products = 0x1p-14F};

struct TileCheck {
  AnyFactor a, b;
  AnyMatrix bias, c, pre_activation;
  const float* a_scale;
  const float* b_scale;
  int64_t depth;
  float start;  // initial content of c
  SumAccuracy accuracy;
  float unit, pre_activation_unit;  // relative rounding errors of c's and the pre-activation's types
  ProductEnd end;
};

// Uses tanhf: exp2_of is no more accurate than the values under test.
__device__ float gelu_tanh_inner(float x) {
  constexpr float c = 0.797884561F;  // sqrt(2 / pi)
  return tanhf(c * (x + 0.044715F * x * x * x));
}
__device__ float gelu_tanh(float x) { return 0.5F * x * (1 + gelu_tanh_inner(x)); }
__device__ float gelu_tanh_slope(float x) {
  constexpr float c = 0.797884561F;
  const float inner = gelu_tanh_inner(x);
  return 0.5F * (1 + inner) + 0.5F * x * (1 - inner * inner) * c * (1 + 3 * 0.044715F * x * x);
}

// Returns the distance as a multiple of `allowed`; 0 if the expected number is not finite, as nothing can be checked
// then.
__device__ float distance(float actual, float expected, float allowed) {
  if (!(fabsf(expected) <= 3e38F)) return 0;
  const float difference = fabsf(actual - expected);
  return difference <= 3e38F ? difference / allowed : INFINITY;
}

__device__ float allowed_of_sum(const TileCheck& check, float sum, float magnitude) {
  const float one_sided = magnitude > 0 ? fabsf(sum) / magnitude : 0.0F;
  const float cut_off = static_cast<float>(check.depth) * fabsf(sum) *
                        (check.accuracy.of_results + check.accuracy.of_products * one_sided);
  return check.accuracy.of_magnitudes * magnitude + cut_off;
}

__device__ float element_distance(const TileCheck& check, int64_t row, int64_t col, float sum, float magnitude) {
  constexpr float least = 1e-30F;                 // keeps the allowed distance above zero
  constexpr float activation_accuracy = 0x1p-8F;  // accuracy of the hardware's tanh instruction
  float scale = 1;
  if (check.a_scale != nullptr) scale *= *check.a_scale;
  if (check.b_scale != nullptr) scale *= *check.b_scale;
  float value = scale * sum + check.start;
  float allowed = fabsf(scale) * allowed_of_sum(check, sum, magnitude) + least;
  if (check.bias.cols > 0) value += check.bias.at(0, col);
  const float actual = check.c.at(row, col);
  if (check.end == ProductEnd::plain) return distance(actual, value, allowed + check.unit * fabsf(value));
  const float before = check.pre_activation.at(row, col);
  if (check.end == ProductEnd::gelu_slope) {
    const float expected = value * gelu_tanh_slope(before);
    allowed += activation_accuracy * (1 + fabsf(before)) * fabsf(value) + check.unit * fabsf(expected);
    return distance(actual, expected, allowed);
  }
  // The library may round the pre-activation before or after computing GELU.
  const float of_kept = distance(before, value, allowed + check.pre_activation_unit * fabsf(value));
  allowed += (activation_accuracy + check.pre_activation_unit) * fabsf(value) + check.unit * fabsf(value);
  return fmaxf(of_kept, distance(actual, gelu_tanh(value), 2 * allowed));
}

// Returns the tile of a block: the corners first, then random ones; all tiles in order if there are no more than
// blocks.
__device__ int64_t tile_of(int64_t block, int64_t blocks, int64_t down, int64_t across) {
  const int64_t tiles = down * across;
  if (tiles <= blocks) return block;
  if (block < 4) return (block / 2) * (down - 1) * across + (block % 2) * (across - 1);
  const auto words = philox({}, {static_cast<uint32_t>(block), 0, 0, 0});
  return static_cast<int64_t>((uint64_t{words[0]} << 32 | words[1]) % static_cast<uint64_t>(tiles));
}

struct TileMemory {
  Slices slices;
  WarpMaxima maxima;
};

__global__ void compare_tile(TileCheck check, TileDistance* distances) {
  const int64_t down = (check.c.rows + side - 1) / side, across = (check.c.cols + side - 1) / side;
  const int64_t tile = tile_of(blockIdx.x, gridDim.x, down, across);
  const int64_t first_row = tile / across * side, first_col = tile % across * side;
  TileMemory& memory = shared<TileMemory>();
  float sums[per_thread][per_thread] = {}, magnitudes[per_thread][per_thread] = {};
  for_each_product(check.a, first_row, check.b, first_col, check.depth, memory.slices,
                   [&](int i, int j, float x, float y) {
                     sums[i][j] += x * y;
                     magnitudes[i][j] += fabsf(x * y);
                   });
  float worst = 0;
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int64_t row = first_row + own_row() + i * threads_across;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      const int64_t col = first_col + own_column() + j * threads_across;
      if (row >= check.c.rows || col >= check.c.cols) continue;
      worst = fmaxf(worst, element_distance(check, row, col, sums[i][j], magnitudes[i][j]));
    }
  }
  // Non-negative floats are ordered as their bits.
  const uint32_t largest = block_maximum(std::bit_cast<uint32_t>(worst), memory.maxima);
  if (threadIdx.x == 0) distances[blockIdx.x] = std::bit_cast<float>(largest);
}

template <typename Word>
__global__ void fill_words(Rows<Word> result, int64_t rows, int64_t cols, Word word) {
  for_each_pack<1>(rows, cols, [&](int64_t row, int64_t column) { *result.at(row, column) = word; });
}

// SplitMix64's mixing function, applied to an element's position and bits.
__device__ uint64_t mixed(uint64_t z) {
  z += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

constexpr unsigned fingerprint_threads = 256;
struct FingerprintMemory {
  Fingerprint of_thread[fingerprint_threads];
};

template <typename Word>
__global__ void fingerprint(Rows<const Word> result, int64_t rows, int64_t cols, Fingerprint* parts) {
  Fingerprint own{0, 0};
  for_each_pack<1>(rows, cols, [&](int64_t row, int64_t column) {
    const Word word = *result.at(row, column);
    own.sum += mixed(mixed(static_cast<uint64_t>(row * cols + column)) ^ word);
    own.unwritten += word == static_cast<Word>(nothing_written) ? 1 : 0;
  });
  FingerprintMemory& memory = shared<FingerprintMemory>();
  memory.of_thread[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (unsigned thread = 1; thread < fingerprint_threads; ++thread) {
    own.sum += memory.of_thread[thread].sum;
    own.unwritten += memory.of_thread[thread].unwritten;
  }
  parts[blockIdx.x] = own;
}

template <typename Body>
void with_word(const Matrix& matrix, const Body& body) {
  if (dtype_bytes(matrix.dtype) == 2) return body(uint16_t{});
  body(uint32_t{});
}

float start_of_sum(DType dtype) {
  constexpr auto low = static_cast<uint16_t>(start_of_sums);
  if (dtype == DType::bf16) return to_float(bf16{low});
  return dtype == DType::f16 ? to_float(f16{low}) : std::bit_cast<float>(start_of_sums);
}

float unit_of(DType dtype) {
  if (dtype == DType::bf16) return 0x1p-7F;
  return dtype == DType::f16 ? 0x1p-10F : 0x1p-22F;
}

}  // namespace

void start_result(const Matrix& result, bool accumulate, Stream stream) {
  with_word(result, [&](auto word) {
    using Word = decltype(word);
    launch(stream, shape_of_elements(result.rows, result.cols, 1), fill_words<Word>, Rows<Word>(result), result.rows,
           result.cols, static_cast<Word>(accumulate ? start_of_sums : nothing_written));
  });
}

int64_t compare_tiles(const ExpectedProduct& expected, TileDistance* distances, Stream stream) {
  const Product& product = expected.product;
  const TileCheck check{.a = AnyFactor(product.a, !product.a_transposed),
                        .b = AnyFactor(product.b, product.b_transposed),
                        .bias = AnyMatrix(product.bias),
                        .c = AnyMatrix(product.c),
                        .pre_activation = AnyMatrix(expected.pre_activation),
                        .a_scale = expected.a_scale,
                        .b_scale = expected.b_scale,
                        .depth = product.depth(),
                        .start = product.accumulate ? start_of_sum(product.c.dtype) : 0.0F,
                        .accuracy = is_fp8(product.a.dtype) ? fp8_sums : f32_sums,
                        .unit = unit_of(product.c.dtype),
                        .pre_activation_unit = unit_of(expected.pre_activation.dtype),
                        .end = expected.end};
  const int64_t down = (product.c.rows + side - 1) / side, across = (product.c.cols + side - 1) / side;
  const int64_t tiles = std::min(down * across, most_checked_tiles);
  launch(stream, {tiles, threads, sizeof(TileMemory)}, compare_tile, check, distances);
  return tiles;
}

int64_t take_fingerprint(const Matrix& result, Fingerprint* parts, Stream stream) {
  const int64_t blocks = std::clamp<int64_t>(result.count() / fingerprint_threads, 1, fingerprint_blocks);
  with_word(result, [&](auto word) {
    using Word = decltype(word);
    launch(stream, {blocks, fingerprint_threads, sizeof(FingerprintMemory)}, fingerprint<Word>,
           Rows<const Word>(result), result.rows, result.cols, parts);
  });
  return blocks;
}

}  // namespace gptrain::cuda
