// Matrices of rows, as element-wise kernels go over them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "base/matrix.h"
#include "base/philox.h"
#include "kernels/values.h"
#include "launch.h"
#include "ops/ops.h"

namespace gptrain {

// A matrix on the device: its element type is the kernel's template argument.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;

  Rows() = default;
  explicit Rows(const Matrix& matrix) : data(matrix.as<T>()), stride(matrix.stride) {}
  __device__ T* at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

constexpr int pack_width = 8;  // 16 bytes of 16-bit types, 32 of f32

// Whether all rows of all matrices begin at a multiple of a pack, and hold whole packs only.
inline bool in_packs(std::initializer_list<Matrix> matrices) {
  return std::all_of(matrices.begin(), matrices.end(), [](const Matrix& matrix) {
    return !matrix.given() || (matrix.cols % pack_width == 0 && matrix.stride % pack_width == 0 &&
                               reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0);
  });
}

// One thread a pack, some for each of many.
inline LaunchShape shape_of_elements(int64_t rows, int64_t cols, int width) {
  constexpr unsigned threads = 256;
  constexpr int64_t most_blocks = 2048;
  static_assert(most_blocks <= amax_parts);
  const int64_t packs = rows * (cols / width);
  return {std::clamp<int64_t>((packs + threads - 1) / threads, 1, most_blocks), threads, 0};
}

// Calls body(row, column) for the first of every N columns, shared over the grid.
template <int N, typename Body>
__device__ void for_each_pack(int64_t rows, int64_t cols, const Body& body) {
  const int64_t packs_per_row = cols / N;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (first >= rows * packs_per_row) return;
  // Divisions take longer than a pack: only the first place, and the way to the next one, are found by them.
  const int64_t row_step = step / packs_per_row, pack_step = step % packs_per_row;
  int64_t pack = first % packs_per_row;
  for (int64_t row = first / packs_per_row; row < rows; row += row_step) {
    body(row, pack * N);
    pack += pack_step;
    if (pack < packs_per_row) continue;
    pack -= packs_per_row;
    ++row;
  }
}

// Dropout as a kernel draws it (see ops/ops.h).
struct DropoutMask {
  uint32_t threshold;
  float scale;
  PhiloxKey key;
  const int64_t* sample_ids;
  int64_t first_row;
  int64_t sequence_length;

  DropoutMask(const Dropout& dropout, int64_t sequence_length_)
      : threshold(drop_threshold(dropout.p)),
        scale(static_cast<float>(1.0 / (1.0 - dropout.p))),
        key(dropout.key),
        sample_ids(dropout.sample_ids),
        first_row(dropout.first_row),
        sequence_length(sequence_length_) {}

  // values[i], which is in (row, column + i), times 0 or the scale.
  template <int N>
  __device__ void apply(int64_t row, int64_t column, float (&values)[N]) const {
    if (threshold == 0) return;
    const int64_t in_batch = first_row + row;
    const auto sample = static_cast<uint64_t>(sample_ids[in_batch / sequence_length]);
    const auto token = static_cast<uint32_t>(in_batch % sequence_length);
    constexpr int drawn = N < 4 ? 1 : 4;
#pragma unroll
    for (int i = 0; i < N; i += drawn) {
      const auto words = philox(key, {static_cast<uint32_t>((column + i) / 4), token, static_cast<uint32_t>(sample),
                                      static_cast<uint32_t>(sample >> 32)});
#pragma unroll
      for (int k = 0; k < drawn; ++k) {
        // Packs begin at multiples of four, and an index that is known beforehand needs no memory.
        const uint32_t word = words[static_cast<size_t>(N < 4 ? (column + i) % 4 : k)];
        values[i + k] = word < threshold ? 0.0F : values[i + k] * scale;
      }
    }
  }
};

// Calls body with a value of the element type.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16) return body(bf16{});
  if (dtype == DType::f16) return body(f16{});
  body(float{});
}

// The same for the second operand of two, of the first one's type T or of any where that is f32. Throws
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

}  // namespace gptrain
