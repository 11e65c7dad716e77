// Values of activations and of their gradients, eight or one at a time, for the kernels that store them and those that
// quantize them. `values` writes the packs of a row at `column`: one, or two that are stored side by side as matrices
// of equally many columns.
#pragma once

#include "kernels/activation_functions.h"
#include "kernels/rows.h"
#include "ops/activation_ops.h"

namespace gptrain::inline cuda {

template <typename C>
struct BiasedRows {
  Rows<const C> x;
  const C* bias;  // null: none
};

template <typename C, int N>
__device__ void load_with_bias(const BiasedRows<C>& biased, int64_t row, int64_t column, float (&values)[N]) {
  const auto in = load<N>(biased.x.at(row, column));
  for (int i = 0; i < N; ++i) values[i] = to_float(in.at[i]);
  if (biased.bias == nullptr) return;
  const auto added = load<N>(biased.bias + column);
  for (int i = 0; i < N; ++i) values[i] += to_float(added.at[i]);
}

template <typename Function, typename C, int N>
struct Activation {
  static constexpr int parts = 1;
  BiasedRows<C> x;

  __device__ void values(int64_t row, int64_t column, Pack<C, N> (&out)[parts]) const {
    float values[N];
    load_with_bias(x, row, column, values);
    for (int i = 0; i < N; ++i) out[0].at[i] = rounded_to<C>(Function::of(values[i]).value);
  }
};

template <typename Function, typename C, int N>
struct ActivationGradient {
  static constexpr int parts = 1;
  BiasedRows<C> x;
  Rows<const C> dy;

  __device__ void values(int64_t row, int64_t column, Pack<C, N> (&out)[parts]) const {
    float values[N];
    load_with_bias(x, row, column, values);
    const auto gradient = load<N>(dy.at(row, column));
    for (int i = 0; i < N; ++i) out[0].at[i] = rounded_to<C>(to_float(gradient.at[i]) * Function::of(values[i]).slope);
  }
};

// x = [gate | up], each of `cols` columns.
template <typename Function, typename C, int N>
struct GatedActivation {
  static constexpr int parts = 1;
  BiasedRows<C> x;
  int64_t cols;

  __device__ void values(int64_t row, int64_t column, Pack<C, N> (&out)[parts]) const {
    float gate[N], up[N];
    load_with_bias(x, row, column, gate);
    load_with_bias(x, row, cols + column, up);
    for (int i = 0; i < N; ++i)
      out[0].at[i] = rounded_to<C>(gate[i] * Function::factor_and_slope(gate[i]).factor * up[i]);
  }
};

template <typename Function, typename C, int N>
struct GatedGradient {
  static constexpr int parts = 2;
  BiasedRows<C> x;
  Rows<const C> dy;
  int64_t cols;

  __device__ void values(int64_t row, int64_t column, Pack<C, N> (&out)[parts]) const {
    float gate[N], up[N];
    load_with_bias(x, row, column, gate);
    load_with_bias(x, row, cols + column, up);
    const auto gradient = load<N>(dy.at(row, column));
    for (int i = 0; i < N; ++i) {
      const FactorAndSlope of_gate = Function::factor_and_slope(gate[i]);
      const float g = to_float(gradient.at[i]);
      out[0].at[i] = rounded_to<C>(g * up[i] * of_gate.slope);
      out[1].at[i] = rounded_to<C>(g * gate[i] * of_gate.factor);
    }
  }
};

// Call body with the values of the op's output. REQUIRES: the op has no codes.
template <typename C, int N, typename Body>
void with_values(const ActivationForward& op, const Body& body) {
  const BiasedRows<C> x{Rows<const C>(op.x), op.bias.as<const C>()};
  const int64_t cols = activated_cols(op.kind, op.x.cols);
  if (op.kind == ActivationKind::swiglu) return body(GatedActivation<Silu, C, N>{x, cols});
  if (op.kind == ActivationKind::geglu) return body(GatedActivation<Gelu, C, N>{x, cols});
  if (op.kind == ActivationKind::geglu_tanh) return body(GatedActivation<GeluTanh, C, N>{x, cols});
  if (op.kind == ActivationKind::gelu) return body(Activation<Gelu, C, N>{x});
  body(Activation<GeluTanh, C, N>{x});
}

template <typename C, int N, typename Body>
void with_values(const ActivationBackward& op, const Body& body) {
  const BiasedRows<C> x{Rows<const C>(op.x), op.bias.as<const C>()};
  const Rows<const C> dy(op.dy);
  const int64_t cols = op.dy.cols;
  if (op.kind == ActivationKind::swiglu) return body(GatedGradient<Silu, C, N>{x, dy, cols});
  if (op.kind == ActivationKind::geglu) return body(GatedGradient<Gelu, C, N>{x, dy, cols});
  if (op.kind == ActivationKind::geglu_tanh) return body(GatedGradient<GeluTanh, C, N>{x, dy, cols});
  if (op.kind == ActivationKind::gelu) return body(ActivationGradient<Gelu, C, N>{x, dy});
  body(ActivationGradient<GeluTanh, C, N>{x, dy});
}

}  // namespace gptrain::cuda
