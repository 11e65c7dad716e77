// Matrices as element-wise kernels traverse them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "base/matrix.h"
#include "base/philox.h"
#include "base/token_rows.h"
#include "kernels/divisor.h"
#include "kernels/values.h"
#include "launch.h"
#include "ops/ops.h"

namespace gptrain::inline cuda {

// Limit for the rows of a matrix and for the rows before it in its micro-batch, so that kernels count both together in
// 31 bits.
constexpr int64_t most_rows = int64_t{1} << 30;

// A matrix on the device; kernels take its element type as template argument. Throws std::logic_error for more rows
// than kernels can count.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;

  Rows() = default;
  explicit Rows(const Matrix& matrix) : data(matrix.as<T>()), stride(matrix.stride) {
    if (matrix.rows > most_rows) throw std::logic_error("a matrix has more rows than kernels can count");
  }
  __device__ T* at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

constexpr int pack_width = 8;  // 16 bytes for 16-bit types, 32 for f32

// Returns true if all rows of all matrices start at a multiple of a pack and consist of whole packs.
inline bool in_packs(std::initializer_list<Matrix> matrices) {
  return std::all_of(matrices.begin(), matrices.end(), [](const Matrix& matrix) {
    return !matrix.given() || (matrix.cols % pack_width == 0 && matrix.stride % pack_width == 0 &&
                               reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0);
  });
}

// One thread per pack; in large matrices each thread takes several.
inline LaunchShape shape_of_elements(int64_t rows, int64_t cols, int width) {
  constexpr unsigned threads = 256;
  constexpr int64_t most_blocks = 2048;
  static_assert(most_blocks <= amax_parts);
  const int64_t packs = rows * (cols / width);
  return {std::clamp<int64_t>((packs + threads - 1) / threads, 1, most_blocks), threads, 0};
}

// Calls body(row, column) for the first of every N columns, divided over the grid.
template <int N, typename Body>
__device__ void for_each_pack(int64_t rows, int64_t cols, const Body& body) {
  const int64_t packs_per_row = cols / N;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (first >= rows * packs_per_row) return;
  // Divisions are slower than a pack's work: only the first position and the step to the next are computed by division.
  // Both fit 32 bits; a row that does not has more packs than the grid has threads.
  const auto divisor = static_cast<uint32_t>(packs_per_row < UINT32_MAX ? packs_per_row : UINT32_MAX);
  const auto start = static_cast<uint32_t>(first), stride = static_cast<uint32_t>(step);
  const int64_t row_step = stride / divisor, pack_step = stride % divisor;
  int64_t pack = start % divisor;
  for (int64_t row = start / divisor; row < rows; row += row_step) {
    body(row, pack * N);
    pack += pack_step;
    if (pack < packs_per_row) continue;
    pack -= packs_per_row;
    ++row;
  }
}

// TokenRows as kernels compute them, below 2^31 rows.
struct RowTokens {
  Divisor length;
  uint32_t first_length, first, second;

  explicit RowTokens(const TokenRows& rows)
      : length(rows.length),
        first_length(static_cast<uint32_t>(rows.first_length)),
        first(static_cast<uint32_t>(rows.first)),
        second(static_cast<uint32_t>(rows.second - rows.first_length)) {
    if (rows.end() > INT32_MAX) throw std::logic_error("a sequence has more tokens than kernels can count");
  }

  struct Position {
    uint32_t sequence, token;
  };
  __device__ Position of(uint32_t row) const {
    const auto [sequence, in_sequence] = length.divide(row);
    return {sequence, in_sequence + (in_sequence < first_length ? first : second)};
  }
};

// Dropout as kernels compute it (see ops/ops.h).
struct DropoutMask {
  uint32_t threshold;
  float scale;
  PhiloxKey key;
  const int64_t* sample_ids;
  int64_t first_row;
  RowTokens tokens;

  DropoutMask(const Dropout& dropout, const TokenRows& token_rows)
      : threshold(drop_threshold(dropout.p)),
        scale(static_cast<float>(1.0 / (1.0 - dropout.p))),
        key(dropout.key),
        sample_ids(dropout.sample_ids),
        first_row(dropout.first_row),
        tokens(token_rows) {
    if (first_row >= most_rows) throw std::logic_error("a matrix has more rows before it than kernels can count");
  }

  // Multiplies values[i], at (row, column + i), by 0 or the scale.
  template <int N>
  __device__ void apply(int64_t row, int64_t column, float (&values)[N]) const {
    if (threshold == 0) return;
    const auto [sequence, token] = tokens.of(static_cast<uint32_t>(first_row + row));
    const auto sample = static_cast<uint64_t>(sample_ids[sequence]);
    constexpr int drawn = N < 4 ? 1 : 4;
#pragma unroll
    for (int i = 0; i < N; i += drawn) {
      const auto words = philox(key, {static_cast<uint32_t>((column + i) / 4), token, static_cast<uint32_t>(sample),
                                      static_cast<uint32_t>(sample >> 32)});
#pragma unroll
      for (int k = 0; k < drawn; ++k) {
        const uint32_t word = word_of(words, N < 4 ? (column + i) % 4 : k);  // packs start at multiples of four
        values[i + k] = word < threshold ? 0.0F : values[i + k] * scale;
      }
    }
  }
};

// Calls body with a value of the element type. Kernels of f16 have the barriers of bf16: the build in which only races
// are looked for leaves them out.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16) return body(bf16{});
#if defined(GPTRAIN_WITHOUT_F16)
  if (dtype == DType::f16) throw std::logic_error("a build without f16 ran an op in f16");
#else
  if (dtype == DType::f16) return body(f16{});
#endif
  body(float{});
}

// Calls body for the second of two operands, whose type is the first one's, T, or any if T is f32. Throws
// std::logic_error for another.
template <typename T, typename Body>
void with_type_beside(T first, DType dtype, const Body& body) {
  if constexpr (std::is_same_v<T, float>) {
    with_type(dtype, body);
  } else {
    constexpr DType own = std::is_same_v<T, bf16> ? DType::bf16 : DType::f16;
    if (dtype != own) throw std::logic_error("operands of a kernel are of different types, and the first is not f32");
    body(first);
  }
}

}  // namespace gptrain::cuda
