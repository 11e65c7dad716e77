#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/math.h"

namespace gptrain::GPTRAIN_ISA {
namespace {

// x Phi(x); the derivative adds x times the normal density.
struct Gelu {
  static float value(float x) { return x * normal_distribution(x).distribution; }
  static float slope(float x) {
    constexpr float inverse_sqrt_2pi = 0.398942280F;
    const Normal normal = normal_distribution(x);
    return normal.distribution + x * normal.exponential * inverse_sqrt_2pi;
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), with 2 u = c (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float c = 1.59576912F;  // 2 sqrt(2 / pi)
  static constexpr float cubic = 0.044715F;
  static float value(float x) { return x * sigmoid(c * (x + cubic * x * x * x)); }
  static float slope(float x) {
    const SigmoidAndSlope s = sigmoid_and_slope(c * (x + cubic * x * x * x));
    return s.value + x * s.slope * (c + 3.0F * c * cubic * x * x);
  }
};

template <typename Function, bool has_bias, typename C>
void forward_row(const C* x, const C* bias, C* y, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    float value = load(x + i);
    if constexpr (has_bias) value += load(bias + i);
    store(y + i, Function::value(value));
  }
}

template <typename Function, bool has_bias, typename C>
void backward_row(const C* x, const C* bias, const C* dy, C* dx, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    float value = load(x + i);
    if constexpr (has_bias) value += load(bias + i);
    store(dx + i, load(dy + i) * Function::slope(value));
  }
}

template <bool has_bias, typename C>
void swiglu_forward_row(const C* x, const C* bias, C* y, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    float gate = load(x + i);
    float up = load(x + cols + i);
    if constexpr (has_bias) {
      gate += load(bias + i);
      up += load(bias + cols + i);
    }
    store(y + i, gate * sigmoid(gate) * up);
  }
}

template <bool has_bias, typename C>
void swiglu_backward_row(const C* x, const C* bias, const C* dy, C* dx, int64_t cols) {
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    float gate = load(x + i);
    float up = load(x + cols + i);
    if constexpr (has_bias) {
      gate += load(bias + i);
      up += load(bias + cols + i);
    }
    const SigmoidAndSlope s = sigmoid_and_slope(gate);
    const float gradient = load(dy + i);
    store(dx + i, gradient * up * (s.value + gate * s.slope));
    store(dx + cols + i, gradient * gate * s.value);
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
        swiglu_forward_row<has_bias>(x, bias, y, cols);
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
        swiglu_backward_row<has_bias>(x, bias, dy, dx, cols);
        break;
    }
  }
}

}  // namespace

void activation_forward(const ActivationForward& op, int64_t first_row, int64_t end_row) {
  with_type(op.x.dtype, [&](auto type) {
    using C = decltype(type);
    if (op.bias.rows > 0) {
      forward_rows<true, C>(op, first_row, end_row);
    } else {
      forward_rows<false, C>(op, first_row, end_row);
    }
  });
}

void activation_backward(const ActivationBackward& op, int64_t first_row, int64_t end_row) {
  with_type(op.x.dtype, [&](auto type) {
    using C = decltype(type);
    if (op.bias.rows > 0) {
      backward_rows<true, C>(op, first_row, end_row);
    } else {
      backward_rows<false, C>(op, first_row, end_row);
    }
  });
}

}  // namespace gptrain::GPTRAIN_ISA
