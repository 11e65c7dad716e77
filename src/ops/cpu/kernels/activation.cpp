#include "ops/cpu/kernels/activation_functions.h"
#include "ops/cpu/kernels/derivative_codes.h"
#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/few_bits.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

template <typename Function, bool has_bias, typename C>
void forward_row(const C* x, const C* bias, C* y, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    float value = load(x + i);
    if constexpr (has_bias) value += load(bias + i);
    store(y + i, value * Function::factor(value));
  }
}

template <typename Function, bool has_bias, typename C>
void backward_row(const C* x, const C* bias, const C* dy, C* dx, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    float value = load(x + i);
    if constexpr (has_bias) value += load(bias + i);
    store(dx + i, load(dy + i) * Function::factor_and_slope(value).slope);
  }
}

// Computes a row as forward_row does, and writes the codes of the derivative.
template <typename Function, bool has_bias, int bits, typename C>
void forward_row_coded(const C* x, const C* bias, C* y, uint8_t* codes, int64_t cols) {
  alignas(64) float values[coded_chunk] = {};
  for (int64_t begin = 0; begin < cols; begin += coded_chunk) {
    const int64_t count = cols - begin < coded_chunk ? cols - begin : coded_chunk;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      float value = load(x + begin + i);
      if constexpr (has_bias) value += load(bias + begin + i);
      values[i] = value;
      store(y + begin + i, value * Function::factor(value));
    }
    encode<Function::kind, bits>(values, count, codes + begin / codes_in_group * bits);
  }
}

template <int bits, typename C>
void backward_row_coded(const uint8_t* codes, const C* dy, C* dx, int64_t cols, const CodeLevels<bits>& levels) {
  alignas(64) float factors[coded_chunk];
  for (int64_t begin = 0; begin < cols; begin += coded_chunk) {
    const int64_t count = cols - begin < coded_chunk ? cols - begin : coded_chunk;
    decode<bits>(codes + begin / codes_in_group * bits, count, levels, factors);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(dx + begin + i, load(dy + begin + i) * factors[i]);
  }
}

template <typename Function, bool has_bias, typename C>
void gated_forward_row(const C* x, const C* bias, C* y, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    float gate = load(x + i);
    float up = load(x + cols + i);
    if constexpr (has_bias) {
      gate += load(bias + i);
      up += load(bias + cols + i);
    }
    store(y + i, gate * Function::factor(gate) * up);
  }
}

template <typename Function, bool has_bias, typename C>
void gated_backward_row(const C* x, const C* bias, const C* dy, C* dx, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    float gate = load(x + i);
    float up = load(x + cols + i);
    if constexpr (has_bias) {
      gate += load(bias + i);
      up += load(bias + cols + i);
    }
    const FactorAndSlope of_gate = Function::factor_and_slope(gate);
    const float gradient = load(dy + i);
    store(dx + i, gradient * up * of_gate.slope);
    store(dx + cols + i, gradient * gate * of_gate.factor);
  }
}

template <bool has_bias, typename C>
void forward_rows(const ActivationForward& op, int64_t first_row, int64_t end_row) {
  const C* bias = has_bias ? row_of<C>(op.bias, 0) : nullptr;
  const int64_t cols = op.y.cols;
  for (int64_t row = first_row; row < end_row; ++row) {
    const C* x = row_of<C>(op.x, row);
    C* y = row_of<C>(op.y, row);
    switch (op.kind) {
      case ActivationKind::gelu:
        forward_row<Gelu, has_bias>(x, bias, y, cols);
        break;
      case ActivationKind::gelu_tanh:
        forward_row<GeluTanh, has_bias>(x, bias, y, cols);
        break;
      case ActivationKind::swiglu:
        gated_forward_row<Silu, has_bias>(x, bias, y, cols);
        break;
      case ActivationKind::geglu:
        gated_forward_row<Gelu, has_bias>(x, bias, y, cols);
        break;
      case ActivationKind::geglu_tanh:
        gated_forward_row<GeluTanh, has_bias>(x, bias, y, cols);
        break;
    }
  }
}

template <bool has_bias, typename C>
void backward_rows(const ActivationBackward& op, int64_t first_row, int64_t end_row) {
  const C* bias = has_bias ? row_of<C>(op.bias, 0) : nullptr;
  const int64_t cols = op.dy.cols;
  for (int64_t row = first_row; row < end_row; ++row) {
    const C* x = row_of<C>(op.x, row);
    const C* dy = row_of<C>(op.dy, row);
    C* dx = row_of<C>(op.dx, row);
    switch (op.kind) {
      case ActivationKind::gelu:
        backward_row<Gelu, has_bias>(x, bias, dy, dx, cols);
        break;
      case ActivationKind::gelu_tanh:
        backward_row<GeluTanh, has_bias>(x, bias, dy, dx, cols);
        break;
      case ActivationKind::swiglu:
        gated_backward_row<Silu, has_bias>(x, bias, dy, dx, cols);
        break;
      case ActivationKind::geglu:
        gated_backward_row<Gelu, has_bias>(x, bias, dy, dx, cols);
        break;
      case ActivationKind::geglu_tanh:
        gated_backward_row<GeluTanh, has_bias>(x, bias, dy, dx, cols);
        break;
    }
  }
}

// Type that stands for a number of bits, for with_code_width.
template <int bits>
struct Width {
  static constexpr int value = bits;
};
template <typename Body>
void with_code_width(int bits, const Body& body) {
  if (bits == 2) return body(Width<2>{});
  if (bits == 3) return body(Width<3>{});
  body(Width<4>{});
}

template <typename Function, bool has_bias, int bits, typename C>
void forward_rows_coded(const ActivationForward& op, int64_t first_row, int64_t end_row) {
  const C* bias = has_bias ? row_of<C>(op.bias, 0) : nullptr;
  for (int64_t row = first_row; row < end_row; ++row) {
    forward_row_coded<Function, has_bias, bits>(row_of<C>(op.x, row), bias, row_of<C>(op.y, row),
                                                row_of<uint8_t>(op.codes, row), op.y.cols);
  }
}

template <bool has_bias, typename C>
void forward_rows_of_kind(const ActivationForward& op, int64_t first_row, int64_t end_row) {
  if (op.code_bits == 0) return forward_rows<has_bias, C>(op, first_row, end_row);
  with_code_width(op.code_bits, [&](auto width) {
    if (op.kind == ActivationKind::gelu) {
      forward_rows_coded<Gelu, has_bias, decltype(width)::value, C>(op, first_row, end_row);
    } else {
      forward_rows_coded<GeluTanh, has_bias, decltype(width)::value, C>(op, first_row, end_row);
    }
  });
}

template <int bits, typename C>
void backward_rows_coded(const ActivationBackward& op, int64_t first_row, int64_t end_row) {
  const CodeLevels<bits> levels(op.kind);
  for (int64_t row = first_row; row < end_row; ++row) {
    backward_row_coded<bits>(row_of<const uint8_t>(op.codes, row), row_of<const C>(op.dy, row), row_of<C>(op.dx, row),
                             op.dy.cols, levels);
  }
}

}  // namespace

void activation_forward(const ActivationForward& op, int64_t first_row, int64_t end_row) {
  with_type(op.y.dtype, [&](auto type) {
    using C = decltype(type);
    if (op.bias.rows > 0) {
      forward_rows_of_kind<true, C>(op, first_row, end_row);
    } else {
      forward_rows_of_kind<false, C>(op, first_row, end_row);
    }
  });
}

void activation_backward(const ActivationBackward& op, int64_t first_row, int64_t end_row) {
  with_type(op.dy.dtype, [&](auto type) {
    using C = decltype(type);
    if (op.code_bits != 0) {
      with_code_width(op.code_bits,
                      [&](auto width) { backward_rows_coded<decltype(width)::value, C>(op, first_row, end_row); });
    } else if (op.bias.rows > 0) {
      backward_rows<true, C>(op, first_row, end_row);
    } else {
      backward_rows<false, C>(op, first_row, end_row);
    }
  });
}

}  // namespace gptrain::ops::GPTRAIN_ISA
