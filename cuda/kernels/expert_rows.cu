// Ops on rows of experts, and those of a router but for its choice. The number of rows is known on the device only: a
// launch covers the bound.
#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "kernels/activation_functions.h"
#include "kernels/rows.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

constexpr unsigned warp_threads = 256, warps = warp_threads / 32;

// RETURNS a device pointer to the number of rows used.
const int32_t* used_rows(const Matrix& offsets) { return offsets.as<const int32_t>() + offsets.cols - 1; }

template <typename C, int N>
__global__ void gather_rows(Rows<const C> x, const int32_t* rows, const int32_t* used, Rows<C> y, int64_t cols) {
  for_each_pack<N>(*used, cols,
                   [&](int64_t row, int64_t column) { store(y.at(row, column), load<N>(x.at(rows[row], column))); });
}

// Slots of the copies of each row.
struct Copies {
  Rows<const int32_t> slots;
  int64_t top_k;
};

// Without a router or shared results their data are null.
template <typename C, int N>
__global__ void combine_rows(Rows<const C> x, Copies copies, Rows<const float> router, Rows<const C> shared, Rows<C> y,
                             int64_t rows, int64_t cols) {
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    float sum[N] = {};
    for (int64_t j = 0; j < copies.top_k; ++j) {
      const int32_t slot = *copies.slots.at(row, j);
      if (slot < 0) continue;
      const auto in = load<N>(x.at(slot, column));
      for (int i = 0; i < N; ++i) sum[i] += to_float(in.at[i]);
    }
    if (router.data != nullptr) {
      const auto in = load<N>(router.at(row, column));
      for (int i = 0; i < N; ++i) sum[i] += in.at[i];
    }
    if (shared.data != nullptr) {
      const auto in = load<N>(shared.at(row, column));
      for (int i = 0; i < N; ++i) sum[i] += to_float(in.at[i]);
    }
    Pack<C, N> out;
    for (int i = 0; i < N; ++i) out.at[i] = rounded_to<C>(sum[i]);
    store(y.at(row, column), out);
  });
}

// An activation function, or one that gates the columns behind its own.
template <typename F, bool gated>
struct Activation {
  using Function = F;
  static constexpr bool is_gated = gated;
};

template <typename A, typename C, int N>
__global__ void weighted_forward(Rows<const C> x, const float* weights, const int32_t* used, Rows<C> y, int64_t cols) {
  for_each_pack<N>(*used, cols, [&](int64_t row, int64_t column) {
    const auto in = load<N>(x.at(row, column));
    const auto up = load<N>(x.at(row, A::is_gated ? cols + column : column));
    Pack<C, N> out;
    for (int i = 0; i < N; ++i) {
      const float value = to_float(in.at[i]);
      const float activated = value * A::Function::factor_and_slope(value).factor;
      out.at[i] = rounded_to<C>(weights[row] * (A::is_gated ? activated * to_float(up.at[i]) : activated));
    }
    store(y.at(row, column), out);
  });
}

// A warp per row, which adds up the gradient of the row's weight in a fixed order.
template <typename A, typename C>
__global__ void weighted_backward(Rows<const C> x, const float* weights, const int32_t* used, Rows<const C> dy,
                                  Rows<C> dx, float* d_weights, int64_t cols) {
  const unsigned lane = threadIdx.x % 32;
  const int64_t step = static_cast<int64_t>(gridDim.x) * warps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * warps + threadIdx.x / 32; row < *used; row += step) {
    const float weight = weights[row];
    float sum = 0;
    for (int64_t column = lane; column < cols; column += 32) {
      const float value = to_float(*x.at(row, column)), gradient = to_float(*dy.at(row, column));
      const FactorAndSlope of_value = A::Function::factor_and_slope(value);
      const float activated = value * of_value.factor;
      if constexpr (A::is_gated) {
        const float up = to_float(*x.at(row, cols + column));
        sum += gradient * activated * up;
        *dx.at(row, column) = rounded_to<C>(weight * gradient * up * of_value.slope);
        *dx.at(row, cols + column) = rounded_to<C>(weight * gradient * activated);
      } else {
        sum += gradient * activated;
        *dx.at(row, column) = rounded_to<C>(weight * gradient * of_value.slope);
      }
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    if (lane == 0) d_weights[row] = sum;
  }
}

template <typename C, int N>
__global__ void jitter_rows(Rows<const C> x, Rows<float> y, DropoutMask draws, float least, float width, int64_t rows,
                            int64_t cols) {
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    const auto [sequence, token] = draws.tokens.of(static_cast<uint32_t>(draws.first_row + row));
    const auto sample = static_cast<uint64_t>(draws.sample_ids[sequence]);
    const auto in = load<N>(x.at(row, column));
    Pack<float, N> out;
    constexpr int drawn = N < 4 ? 1 : 4;
    for (int i = 0; i < N; i += drawn) {
      const auto words = philox(draws.key, {static_cast<uint32_t>((column + i) / 4), token,
                                            static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
      for (int k = 0; k < drawn; ++k) {
        const float draw = uniform_open_closed(word_of(words, N < 4 ? (column + i) % 4 : k));
        out.at[i + k] = to_float(in.at[i + k]) * (least + width * draw);
      }
    }
    store(y.at(row, column), out);
  });
}

__global__ void gate_rows(Rows<const float> logits, float* weights, int32_t* offsets, int64_t rows) {
  for_each_pack<1>(rows, 1, [&](int64_t row, int64_t) { weights[row] = sigmoid(*logits.at(row, 0)).value; });
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  offsets[0] = 0;
  offsets[1] = static_cast<int32_t>(rows);
}

__global__ void gate_rows_backward(const float* weights, const float* d_weights, Rows<float> d_logits, int64_t rows) {
  for_each_pack<1>(rows, 1, [&](int64_t row, int64_t) {
    *d_logits.at(row, 0) = d_weights[row] * weights[row] * (1.0F - weights[row]);
  });
}

// A block per segment. Every thread adds up all loads, in order.
__global__ void balance_routers(const BalanceSegment* segments, const StepState* state, const double* routed,
                                float rate, float* values) {
  if (state->skip != 0) return;
  const BalanceSegment segment = segments[blockIdx.x];
  double sum = 0;
  for (int64_t e = 0; e < segment.experts; ++e) sum += routed[segment.first_routed + e];
  const double mean = sum / static_cast<double>(segment.experts);
  for (int64_t i = threadIdx.x; i < segment.count; i += blockDim.x) {
    float& value = values[segment.offset + i];
    const double count = routed[segment.first_routed + segment.first + i];
    if (segment.is_excess != 0) {
      value = mean > 0 ? static_cast<float>(count / mean - 1) : 0.0F;
    } else {
      value += count < mean ? rate : count > mean ? -rate : 0.0F;
    }
  }
}

template <typename C>
__global__ void write_zeros(C* to, int64_t count) {
  for_each_pack<1>(1, count, [&](int64_t, int64_t column) { to[column] = rounded_to<C>(0.0F); });
}

// Calls body with the element type and the pack width as a constant: wide if all operands allow it.
template <typename Body>
void with_packs(DType dtype, std::initializer_list<Matrix> operands, const Body& body) {
  with_type(dtype, [&](auto type) {
    if (in_packs(operands)) return body(type, std::integral_constant<int, pack_width>{});
    body(type, std::integral_constant<int, 1>{});
  });
}

template <typename Body>
void with_activation(ActivationKind kind, const Body& body) {
  if (kind == ActivationKind::swiglu) return body(Activation<Silu, true>{});
  if (kind == ActivationKind::geglu) return body(Activation<Gelu, true>{});
  if (kind == ActivationKind::geglu_tanh) return body(Activation<GeluTanh, true>{});
  if (kind == ActivationKind::gelu) return body(Activation<Gelu, false>{});
  body(Activation<GeluTanh, false>{});
}

}  // namespace

void cuda_run(const GatherRows& op, Stream stream, std::byte*) {
  with_packs(op.y.dtype, {op.x, op.y}, [&](auto type, auto width) {
    using C = decltype(type);
    constexpr int n = decltype(width)::value;
    launch(stream, shape_of_elements(op.y.rows, op.y.cols, n), gather_rows<C, n>, Rows<const C>(op.x),
           op.rows.as<const int32_t>(), used_rows(op.offsets), Rows<C>(op.y), op.y.cols);
  });
}

void cuda_run(const CombineRows& op, Stream stream, std::byte*) {
  with_packs(op.y.dtype, {op.x, op.y, op.router, op.shared}, [&](auto type, auto width) {
    using C = decltype(type);
    constexpr int n = decltype(width)::value;
    launch(stream, shape_of_elements(op.y.rows, op.y.cols, n), combine_rows<C, n>, Rows<const C>(op.x),
           Copies{Rows<const int32_t>(op.slots), op.slots.cols}, Rows<const float>(op.router), Rows<const C>(op.shared),
           Rows<C>(op.y), op.y.rows, op.y.cols);
  });
}

void cuda_run(const ExpertActivationForward& op, Stream stream, std::byte*) {
  with_packs(op.y.dtype, {op.x, op.y}, [&](auto type, auto width) {
    using C = decltype(type);
    constexpr int n = decltype(width)::value;
    with_activation(op.kind, [&](auto activation) {
      launch(stream, shape_of_elements(op.y.rows, op.y.cols, n), weighted_forward<decltype(activation), C, n>,
             Rows<const C>(op.x), op.weights.as<const float>(), used_rows(op.offsets), Rows<C>(op.y), op.y.cols);
    });
  });
}

void cuda_run(const ExpertActivationBackward& op, Stream stream, std::byte*) {
  constexpr int64_t most_blocks = 2048;
  const int64_t blocks = std::min<int64_t>((op.dy.rows + warps - 1) / warps, most_blocks);
  with_type(op.dy.dtype, [&](auto type) {
    using C = decltype(type);
    with_activation(op.kind, [&](auto activation) {
      launch(stream, {blocks, warp_threads, 0}, weighted_backward<decltype(activation), C>, Rows<const C>(op.x),
             op.weights.as<const float>(), used_rows(op.offsets), Rows<const C>(op.dy), Rows<C>(op.dx),
             op.d_weights.as<float>(), op.dy.cols);
    });
  });
}

void cuda_run(const JitterRows& op, Stream stream, std::byte*) {
  const auto width_of_draws = static_cast<float>(2 * op.dropout.p), least = static_cast<float>(1 - op.dropout.p);
  with_packs(op.x.dtype, {op.x, op.y}, [&](auto type, auto width) {
    using C = decltype(type);
    constexpr int n = decltype(width)::value;
    launch(stream, shape_of_elements(op.y.rows, op.y.cols, n), jitter_rows<C, n>, Rows<const C>(op.x),
           Rows<float>(op.y), DropoutMask(op.dropout, op.token_rows), least, width_of_draws, op.y.rows, op.y.cols);
  });
}

void cuda_run(const GateRows& op, Stream stream, std::byte*) {
  launch(stream, shape_of_elements(op.logits.rows, 1, 1), gate_rows, Rows<const float>(op.logits),
         op.weights.as<float>(), op.offsets.as<int32_t>(), op.logits.rows);
}

void cuda_run(const GateRowsBackward& op, Stream stream, std::byte*) {
  launch(stream, shape_of_elements(op.d_logits.rows, 1, 1), gate_rows_backward, op.weights.as<const float>(),
         op.d_weights.as<const float>(), Rows<float>(op.d_logits), op.d_logits.rows);
}

void cuda_run(const BalanceRouters& op, Stream stream, std::byte*) {
  if (op.num_segments == 0) return;
  launch(stream, {op.num_segments, 32, 0}, balance_routers, op.segments, op.state, op.routed.as<const double>(),
         static_cast<float>(op.rate), op.values.as<float>());
}

void cuda_run(const WriteZeros& op, Stream stream, std::byte*) {
  with_type(op.to.dtype, [&](auto type) {
    using C = decltype(type);
    launch(stream, shape_of_elements(1, op.to.cols, 1), write_zeros<C>, op.to.as<C>(), op.to.cols);
  });
}

}  // namespace gptrain::cuda
