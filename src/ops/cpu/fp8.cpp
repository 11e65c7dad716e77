// Ops of FP8 linears, element by element with the arithmetic of GPUs. For tests and the host harness of the CUDA
// backend, not for training.
#include "base/fp8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/cpu/cpu_ops.h"

namespace gptrain::inline ops {

namespace {

template <typename T>
const T* scaled_row(const Matrix& matrix, int64_t row) {
  return matrix.as<const T>() + row * matrix.stride;
}

template <typename T>
void quantize(const Matrix& x, const Fp8Copies& to, int num_threads) {
  const float* const parts = to.amax.as<float>();
  const float scale = fp8_scale<T>(*std::max_element(parts, parts + to.amax.cols));
  *to.inverse_scale.as<float>() = 1.0F / scale;
  parallel_shares(num_threads, x.rows, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      for (int64_t col = 0; col < x.cols; ++col) {
        const T code = to_fp8<T>(scaled_for_fp8(to_float(scaled_row<bf16>(x, row)[col]), scale));
        if (to.rows.given()) to.rows.as<T>()[row * to.rows.stride + col] = code;
        if (to.transposed.given()) to.transposed.as<T>()[col * to.transposed.stride + row] = code;
      }
    }
  });
}

// Returns the amax of a bf16 matrix.
float amax_of(const Matrix& x) {
  constexpr uint16_t infinity = 0x7f80;
  uint16_t largest = 0;  // magnitudes of bf16 compare like their bits
  for (int64_t row = 0; row < x.rows; ++row) {
    const bf16* const from = scaled_row<bf16>(x, row);
    for (int64_t col = 0; col < x.cols; ++col)
      largest = std::max(largest, static_cast<uint16_t>(from[col].bits & 0x7fffU));
  }
  return to_float(bf16{std::min(largest, infinity)});
}

using Numbers = std::array<float, 256>;  // value of each code

template <typename T>
constexpr Numbers numbers_of() {
  Numbers numbers{};
  for (size_t code = 0; code < numbers.size(); ++code) numbers[code] = to_float(T{static_cast<uint8_t>(code)});
  return numbers;
}

const Numbers& numbers(DType dtype) {
  static constexpr Numbers e4m3 = numbers_of<f8e4m3>();
  static constexpr Numbers e5m2 = numbers_of<f8e5m2>();
  return dtype == DType::f8e4m3 ? e4m3 : e5m2;
}

// Columns of a product that are summed side by side: one column's additions wait for each other.
constexpr int64_t block_cols = 8;
using BlockSums = std::array<double, block_cols>;

// Returns the product of a row of codes and `b`, the decoded [K, block_cols].
BlockSums product_of_row(const uint8_t* a, const Numbers& of_a, const std::vector<float>& b) {
  BlockSums sums{};
  const auto num_terms = b.size() / block_cols;
  for (size_t k = 0; k < num_terms; ++k) {
    const float x = of_a[a[k]];
    for (size_t col = 0; col < block_cols; ++col) sums[col] += static_cast<double>(x * b[k * block_cols + col]);
  }
  return sums;
}

void store_sum(const ScaledProduct& op, int64_t row, int64_t col, double sum) {
  if (op.bias.given()) sum += static_cast<double>(to_float(op.bias.as<bf16>()[col]));
  const int64_t index = row * op.c.stride + col;
  if (op.c.dtype == DType::bf16) {
    op.c.as<bf16>()[index] = to_bf16(static_cast<float>(sum));
    return;
  }
  float& c = op.c.as<float>()[index];
  c = static_cast<float>(op.accumulate ? sum + static_cast<double>(c) : sum);
}

}  // namespace

void cpu_run(const Amax& op, const CpuContext&) {
  float* const parts = op.amax.as<float>();
  std::fill(parts, parts + amax_parts, 0.0F);
  parts[0] = amax_of(op.x);
}

void cpu_run(const Quantize& op, const CpuContext& context) {
  const Fp8Copies& to = op.to;
  if (to.dtype() == DType::f8e4m3) {
    quantize<f8e4m3>(op.x, to, context.num_threads);
  } else {
    quantize<f8e5m2>(op.x, to, context.num_threads);
  }
  if (to.largest.given()) *to.largest.as<float>() = std::max(*to.largest.as<float>(), amax_of(op.x));
  if (!to.column_sums.given()) return;
  parallel_column_blocks(context.num_threads, op.x.cols, [&](int64_t first, int64_t end) {
    for (int64_t col = first; col < end; ++col) {
      double sum = 0;
      for (int64_t row = 0; row < op.x.rows; ++row)
        sum += static_cast<double>(to_float(scaled_row<bf16>(op.x, row)[col]));
      to.column_sums.as<double>()[col] = sum;
    }
  });
}

void cpu_run(const RollAmaxes& op, const CpuContext&) {
  if (op.state->skip != 0) return;
  const int64_t row = (op.state->updates - 1) % op.history.rows;
  for (int64_t i = 0; i < op.amaxes.cols; ++i) {
    const float amax = op.amaxes.as<float>()[i];
    op.history.as<float>()[row * op.history.stride + i] = amax > 0 && std::isfinite(amax) ? amax : 0.0F;
    float largest = 0;
    for (int64_t step = 0; step < op.history.rows; ++step)
      largest = std::max(largest, op.history.as<float>()[step * op.history.stride + i]);
    op.forecast.as<float>()[i] = largest > 0 ? largest : op.initial.as<float>()[i];
  }
}

// Products of two FP8 numbers are exact in f32; their sums in f64 are almost exact.
void cpu_run(const ScaledProduct& op, const CpuContext& context) {
  const Numbers& of_a = numbers(op.a.dtype);
  const Numbers& of_b = numbers(op.b.dtype);
  const double scale = static_cast<double>(*op.a_scale.as<float>()) * static_cast<double>(*op.b_scale.as<float>());
  parallel_shares(context.num_threads, op.a.rows, [&](int64_t first, int64_t end) {
    std::vector<float> decoded(op.a.cols * block_cols);
    for (int64_t block = 0; block < op.b.rows; block += block_cols) {
      const int64_t block_end = std::min(block + block_cols, op.b.rows);
      for (int64_t col = block; col < block_end; ++col) {
        const uint8_t* const b = scaled_row<uint8_t>(op.b, col);
        for (int64_t k = 0; k < op.a.cols; ++k) decoded[k * block_cols + col - block] = of_b[b[k]];
      }
      for (int64_t row = first; row < end; ++row) {
        const BlockSums sums = product_of_row(scaled_row<uint8_t>(op.a, row), of_a, decoded);
        for (int64_t col = block; col < block_end; ++col) store_sum(op, row, col, sums[col - block] * scale);
      }
    }
  });
}

}  // namespace gptrain::ops
