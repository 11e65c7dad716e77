// Activations and their gradients, as references for the cases of ops that compute them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "harness.h"
#include "reference.h"

namespace gptrain::ops_test::activation_reference {

inline constexpr double inverse_sqrt_2pi = 0.39894228040143267794;

struct Kind {
  ActivationKind kind;
  const char* name;
};
inline constexpr Kind kinds[] = {{ActivationKind::gelu, "gelu"},
                                 {ActivationKind::gelu_tanh, "gelu_tanh"},
                                 {ActivationKind::swiglu, "swiglu"},
                                 {ActivationKind::geglu, "geglu"},
                                 {ActivationKind::geglu_tanh, "geglu_tanh"}};

template <typename Real>
Real gelu(Real x) {
  return x * std::erfc(-x * static_cast<Real>(M_SQRT1_2)) / 2;
}

template <typename Real>
Real gelu_slope(Real x) {
  return std::erfc(-x * static_cast<Real>(M_SQRT1_2)) / 2 +
         x * std::exp(-x * x / 2) * static_cast<Real>(inverse_sqrt_2pi);
}

template <typename Real>
Real silu(Real x) {
  return x / (1 + std::exp(-x));
}

template <typename Real>
Real silu_slope(Real x) {
  const Real s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

// The function of an activation, and its slope; if it is gated, those of the gate.
template <typename Real>
Real function(ActivationKind kind, Real x) {
  if (kind == ActivationKind::swiglu) return silu(x);
  return kind == ActivationKind::gelu || kind == ActivationKind::geglu ? gelu(x) : gelu_tanh(x);
}

template <typename Real>
Real slope(ActivationKind kind, Real x) {
  if (kind == ActivationKind::swiglu) return silu_slope(x);
  return kind == ActivationKind::gelu || kind == ActivationKind::geglu ? gelu_slope(x) : gelu_tanh_slope(x);
}

// x with the bias added, row by row.
template <typename Real>
std::vector<Real> biased(const Operand& x, const Operand& bias, bool with_bias) {
  const Matrix view = x.matrix();
  std::vector<Real> sums;
  for (int64_t row = 0; row < view.rows; ++row)
    for (int64_t col = 0; col < view.cols; ++col)
      sums.push_back(static_cast<Real>(x.at(row, col)) + (with_bias ? static_cast<Real>(bias.at(0, col)) : Real{0}));
  return sums;
}

template <typename Real>
std::vector<Real> activate(ActivationKind kind, const std::vector<Real>& x, int64_t cols) {
  std::vector<Real> y;
  if (is_gated(kind)) {
    for (size_t i = 0; i < x.size() / 2; ++i) {
      const size_t row = i / static_cast<size_t>(cols);
      const size_t at = i + row * static_cast<size_t>(cols);
      y.push_back(function(kind, x[at]) * x[at + static_cast<size_t>(cols)]);
    }
  } else {
    for (const Real value : x) y.push_back(function(kind, value));
  }
  return y;
}

template <typename Real>
std::vector<Real> gradient(ActivationKind kind, const std::vector<Real>& x, const std::vector<Real>& dy, int64_t cols) {
  std::vector<Real> dx(x.size());
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t row = i / static_cast<size_t>(cols);
    if (is_gated(kind)) {
      const size_t gate = i + row * static_cast<size_t>(cols);
      const size_t up = gate + static_cast<size_t>(cols);
      dx[gate] = dy[i] * x[up] * slope(kind, x[gate]);
      dx[up] = dy[i] * function(kind, x[gate]);
    } else {
      dx[i] = dy[i] * slope(kind, x[i]);
    }
  }
  return dx;
}

}  // namespace gptrain::ops_test::activation_reference
