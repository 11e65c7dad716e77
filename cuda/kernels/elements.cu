// Element-wise ops.
#include <cmath>

#include "kernels/activation_values.h"
#include "kernels/amax.h"
#include "kernels/fp8_activation.h"
#include "kernels/run.h"
#include "ops/few_bits.h"

namespace gptrain::inline cuda {
namespace {

template <typename From, typename To, int N>
__global__ void cast(Rows<const From> from, Rows<To> to, int64_t rows, int64_t cols) {
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    const auto in = load<N>(from.at(row, column));
    Pack<To, N> out;
    for (int i = 0; i < N; ++i) out.at[i] = rounded_to<To>(to_float(in.at[i]));
    store(to.at(row, column), out);
  });
}

struct SumFactors {
  double a;
  float b;
  const double* squared_norm;  // a's factor is divided by its root, at least by least_norm; null: by 1
  double least_norm;
};

// Without b, b is a and its factor 0; infinities and NaNs of a remain.
template <typename From, typename To, int N>
__global__ void weighted_sum(Rows<const From> a, Rows<const From> b, SumFactors factors, Rows<To> to, int64_t rows,
                             int64_t cols) {
  double divisor = 1;
  if (factors.squared_norm != nullptr) {
    const double norm = sqrt(*factors.squared_norm);
    divisor = norm < factors.least_norm ? factors.least_norm : norm;
  }
  const auto factor = static_cast<float>(factors.a / divisor);
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    const auto of_a = load<N>(a.at(row, column));
    Pack<To, N> out;
    if (factors.b == 0) {
      for (int i = 0; i < N; ++i) out.at[i] = rounded_to<To>(factor * to_float(of_a.at[i]));
    } else {
      const auto of_b = load<N>(b.at(row, column));
      for (int i = 0; i < N; ++i)
        out.at[i] = rounded_to<To>(factor * to_float(of_a.at[i]) + factors.b * to_float(of_b.at[i]));
    }
    store(to.at(row, column), out);
  });
}

template <int n>
__global__ void keep_residual(const StepState* state, Rows<const float> errors, Rows<float> residual, int64_t cols) {
  if (state->skip != 0) return;
  for_each_pack<n>(
      1, cols, [&](int64_t row, int64_t column) { store(residual.at(row, column), load<n>(errors.at(row, column))); });
}

template <typename From, int N>
__global__ void add(Rows<const From> from, Rows<float> to, int64_t rows, int64_t cols) {
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    const auto in = load<N>(from.at(row, column));
    auto out = load<N>(to.at(row, column));
    for (int i = 0; i < N; ++i) out.at[i] += to_float(in.at[i]);
    store(to.at(row, column), out);
  });
}

// sums: [num_rows, num_sums], those of the columns from `first` on.
__global__ void add_sums(Rows<const double> sums, int64_t num_rows, int64_t num_sums, int64_t first, float* gradient,
                         int64_t cols, bool accumulate) {
  for_each_pack<1>(1, cols, [&](int64_t, int64_t column) {
    double sum = 0;
    if (column >= first && column < first + num_sums) {
      for (int64_t row = 0; row < num_rows; ++row) sum += *sums.at(row, column - first);
    }
    const double before = accumulate ? static_cast<double>(gradient[column]) : 0.0;
    gradient[column] = static_cast<float>(sum + before);
  });
}

template <typename R, typename C, int N>
__global__ void residual_add(Rows<const R> x, Rows<const C> branch, Rows<R> x_out, DropoutMask dropout, int64_t rows,
                             int64_t cols) {
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    const auto in = load<N>(x.at(row, column));
    const auto added = load<N>(branch.at(row, column));
    float values[N];
    for (int i = 0; i < N; ++i) values[i] = to_float(added.at[i]);
    dropout.apply(row, column, values);
    Pack<R, N> out;
    for (int i = 0; i < N; ++i) out.at[i] = rounded_to<R>(to_float(in.at[i]) + values[i]);
    store(x_out.at(row, column), out);
  });
}

template <typename R, typename C, int N>
__global__ void branch_backward(Rows<const R> dx, Rows<C> d_branch, DropoutMask dropout, int64_t rows, int64_t cols,
                                float* parts) {
  RunningAmax amax(parts);
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    const auto in = load<N>(dx.at(row, column));
    float values[N];
    for (int i = 0; i < N; ++i) values[i] = to_float(in.at[i]);
    dropout.apply(row, column, values);
    Pack<C, N> out;
    for (int i = 0; i < N; ++i) out.at[i] = rounded_to<C>(values[i]);
    store(d_branch.at(row, column), out);
    amax.see(out);
  });
  amax.leave();
}

// The parts of an output are separate matrices: with stores through one pointer, the compiler would split those of the
// second part into single words.
template <typename C, int parts>
struct OutputParts {
  Rows<C> at[parts];
};

// Stores an activation or its gradient, whose parts have `cols` columns each.
template <typename Values, typename C, int N>
__global__ void store_activation(Values source, OutputParts<C, Values::parts> to, int64_t rows, int64_t cols,
                                 float* parts) {
  RunningAmax amax(parts);
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    Pack<C, N> out[Values::parts];
    source.values(row, column, out);
#pragma unroll
    for (int part = 0; part < Values::parts; ++part) {
      store(to.at[part].at(row, column), out[part]);
      amax.see(out[part]);
    }
  });
  amax.leave();
}

__host__ __device__ constexpr int64_t align_up_to_group(int64_t cols) {
  return (cols + codes_in_group - 1) / codes_in_group * codes_in_group;
}

// Loads a thread's part of a row that is stored beside codes. `wide`: rows are whole packs of codes_in_group elements.
template <bool wide, typename C>
__device__ auto load_group(const Rows<const C>& rows, int64_t row, int64_t column, int64_t cols) {
  if constexpr (wide) {
    return load<codes_in_group>(rows.at(row, column));
  } else {
    Pack<std::remove_const_t<C>, codes_in_group> pack;
    for (int i = 0; i < codes_in_group; ++i)
      pack.at[i] = column + i < cols ? *rows.at(row, column + i) : std::remove_const_t<C>{};
    return pack;
  }
}
template <bool wide, typename C>
__device__ void store_group(const Rows<C>& rows, int64_t row, int64_t column, int64_t cols,
                            const Pack<C, codes_in_group>& pack) {
  if constexpr (wide) {
    store(rows.at(row, column), pack);
  } else {
    for (int i = 0; i < codes_in_group; ++i)
      if (column + i < cols) *rows.at(row, column + i) = pack.at[i];
  }
}

template <typename Function, int bits, bool wide, typename C>
__global__ void activation_forward_coded(Rows<const C> x, const C* bias, Rows<C> y, Rows<uint8_t> codes, int64_t rows,
                                         int64_t cols, float* parts) {
  constexpr ActivationPieces<bits> pieces = activation_pieces<bits>(Function::kind);
  RunningAmax amax(parts);
  for_each_pack<codes_in_group>(rows, align_up_to_group(cols), [&](int64_t row, int64_t column) {
    const auto in = load_group<wide>(x, row, column, cols);
    Pack<C, codes_in_group> out;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < codes_in_group; ++i) {
      const bool exists = wide || column + i < cols;
      float value = to_float(in.at[i]);
      if (bias != nullptr && exists) value += to_float(bias[column + i]);
      out.at[i] = exists ? rounded_to<C>(Function::of(value).value) : C{};
      const float magnitude = fabsf(value);
      uint32_t code = value < 0 ? pieces.count : 0;
#pragma unroll
      for (int j = 0; j + 1 < pieces.count; ++j) code += magnitude > pieces.borders[j] ? 1 : 0;
      word |= code << (bits * i);
    }
    store_group<wide>(y, row, column, cols, out);
    uint8_t* group = codes.at(row, column / codes_in_group * bits);
#pragma unroll
    for (int i = 0; i < bits; ++i) group[i] = static_cast<uint8_t>(word >> (8 * i));
    amax.see(out);
  });
  amax.leave();
}

template <typename Function, int bits, bool wide, typename C>
__global__ void activation_backward_coded(Rows<const uint8_t> codes, Rows<const C> dy, Rows<C> dx, int64_t rows,
                                          int64_t cols, float* parts) {
  constexpr ActivationPieces<bits> pieces = activation_pieces<bits>(Function::kind);
  RunningAmax amax(parts);
  for_each_pack<codes_in_group>(rows, align_up_to_group(cols), [&](int64_t row, int64_t column) {
    const uint8_t* group = codes.at(row, column / codes_in_group * bits);
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < bits; ++i) word |= static_cast<uint32_t>(group[i]) << (8 * i);
    const auto gradient = load_group<wide>(dy, row, column, cols);
    Pack<C, codes_in_group> out;
#pragma unroll
    for (int i = 0; i < codes_in_group; ++i) {
      const uint32_t code = word >> (bits * i), piece = code & (pieces.count - 1);
      // Compares with constants: an indexed table would be placed in memory.
      float level = pieces.levels[0];
#pragma unroll
      for (int j = 1; j < pieces.count; ++j) level = piece >= static_cast<uint32_t>(j) ? pieces.levels[j] : level;
      if ((code & pieces.count) != 0) level = 1.0F - level;
      out.at[i] = rounded_to<C>(to_float(gradient.at[i]) * level);
    }
    store_group<wide>(dx, row, column, cols, out);
    amax.see(out);
  });
  amax.leave();
}

// Returns the launch shape, with shared memory for the maxima if the amax is requested.
LaunchShape shape_with_amax(int64_t rows, int64_t cols, int width, const Matrix& amax) {
  LaunchShape shape = shape_of_elements(rows, cols, width);
  if (amax.given()) shape.shared_bytes = sizeof(WarpMaxima);
  return shape;
}

// Calls body with the bits per code as a constant.
template <typename Body>
void with_code_width(int bits, const Body& body) {
  if (bits == 2) return body(std::integral_constant<int, 2>{});
  if (bits == 3) return body(std::integral_constant<int, 3>{});
  body(std::integral_constant<int, 4>{});
}

template <typename C, int N>
void launch_coded(const ActivationForward& op, Stream stream) {
  with_code_width(op.code_bits, [&](auto width) {
    constexpr int bits = decltype(width)::value;
    constexpr bool wide = N == codes_in_group;
    const int64_t rows = op.y.rows, cols = op.y.cols;
    auto* kernel = op.kind == ActivationKind::gelu ? activation_forward_coded<Gelu, bits, wide, C>
                                                   : activation_forward_coded<GeluTanh, bits, wide, C>;
    launch(stream, shape_with_amax(rows, align_up_to_group(cols), codes_in_group, op.amax), kernel, Rows<const C>(op.x),
           op.bias.as<const C>(), Rows<C>(op.y), Rows<uint8_t>(op.codes), rows, cols, op.amax.as<float>());
  });
}

template <typename C, int N>
void launch_coded(const ActivationBackward& op, Stream stream) {
  with_code_width(op.code_bits, [&](auto width) {
    constexpr int bits = decltype(width)::value;
    constexpr bool wide = N == codes_in_group;
    const int64_t rows = op.dy.rows, cols = op.dy.cols;
    auto* kernel = op.kind == ActivationKind::gelu ? activation_backward_coded<Gelu, bits, wide, C>
                                                   : activation_backward_coded<GeluTanh, bits, wide, C>;
    launch(stream, shape_with_amax(rows, align_up_to_group(cols), codes_in_group, op.amax), kernel,
           Rows<const uint8_t>(op.codes), Rows<const C>(op.dy), Rows<C>(op.dx), rows, cols, op.amax.as<float>());
  });
}

template <typename C, int N, typename Op>
void launch_activation(const Op& op, const Matrix& output, Stream stream) {
  if (op.code_bits != 0) return launch_coded<C, N>(op, stream);
  with_values<C, N>(op, [&](const auto& values) {
    using Values = std::decay_t<decltype(values)>;
    const int64_t cols = output.cols / Values::parts;
    OutputParts<C, Values::parts> to;
    for (int part = 0; part < Values::parts; ++part) to.at[part] = Rows<C>(output.column_range(part * cols, cols));
    launch(stream, shape_with_amax(output.rows, cols, N, op.amax), store_activation<Values, C, N>, values, to,
           output.rows, cols, op.amax.template as<float>());
  });
}

// Calls body with the pack width as a constant: wide if all operands allow it.
template <typename Body>
void with_width(std::initializer_list<Matrix> operands, const Body& body) {
  if (in_packs(operands)) return body(std::integral_constant<int, pack_width>{});
  body(std::integral_constant<int, 1>{});
}

}  // namespace

void cuda_run(const Cast& op, Stream stream, std::byte*) {
  with_type(op.from.dtype, [&](auto from) {
    with_type(op.to.dtype, [&](auto to) {
      with_width({op.from, op.to}, [&](auto width) {
        using From = decltype(from);
        using To = decltype(to);
        constexpr int n = decltype(width)::value;
        launch(stream, shape_of_elements(op.to.rows, op.to.cols, n), cast<From, To, n>, Rows<const From>(op.from),
               Rows<To>(op.to), op.to.rows, op.to.cols);
      });
    });
  });
}

void cuda_run(const WeightedSum& op, Stream stream, std::byte*) {
  const Matrix& b = op.b.given() ? op.b : op.a;
  const SumFactors factors{.a = op.a_factor,
                           .b = op.b.given() ? static_cast<float>(op.b_factor) : 0.0F,
                           .squared_norm = op.squared_norm.as<const double>(),
                           .least_norm = op.least_norm};
  with_type(op.a.dtype, [&](auto from) {
    with_type(op.to.dtype, [&](auto to) {
      with_width({op.a, b, op.to}, [&](auto width) {
        using From = decltype(from);
        using To = decltype(to);
        constexpr int n = decltype(width)::value;
        launch(stream, shape_of_elements(op.to.rows, op.to.cols, n), weighted_sum<From, To, n>, Rows<const From>(op.a),
               Rows<const From>(b), factors, Rows<To>(op.to), op.to.rows, op.to.cols);
      });
    });
  });
}

void cuda_run(const Add& op, Stream stream, std::byte*) {
  with_width({op.from, op.to}, [&](auto width) {
    constexpr int n = decltype(width)::value;
    const LaunchShape shape = shape_of_elements(op.to.rows, op.to.cols, n);
    const Rows<float> to(op.to);
    if (op.from.dtype == DType::bf16) {
      launch(stream, shape, add<bf16, n>, Rows<const bf16>(op.from), to, op.to.rows, op.to.cols);
    } else {
      launch(stream, shape, add<float, n>, Rows<const float>(op.from), to, op.to.rows, op.to.cols);
    }
  });
}

void cuda_run(const KeepResidual& op, Stream stream, std::byte*) {
  with_width({op.errors, op.residual}, [&](auto width) {
    constexpr int n = decltype(width)::value;
    launch(stream, shape_of_elements(1, op.residual.cols, n), keep_residual<n>, op.state, Rows<const float>(op.errors),
           Rows<float>(op.residual), op.residual.cols);
  });
}

void cuda_run(const AddSums& op, Stream stream, std::byte*) {
  launch(stream, shape_of_elements(1, op.gradient.cols, 1), add_sums, Rows<const double>(op.sums), op.sums.rows,
         op.sums.cols, op.first, op.gradient.as<float>(), op.gradient.cols, op.accumulate);
}

void cuda_run(const ResidualAdd& op, Stream stream, std::byte*) {
  with_type(op.x.dtype, [&](auto residual) {
    with_type_beside(residual, op.branch.dtype, [&](auto compute) {
      with_width({op.x, op.branch, op.x_out}, [&](auto width) {
        using R = decltype(residual);
        using C = decltype(compute);
        constexpr int n = decltype(width)::value;
        launch(stream, shape_of_elements(op.x.rows, op.x.cols, n), residual_add<R, C, n>, Rows<const R>(op.x),
               Rows<const C>(op.branch), Rows<R>(op.x_out), DropoutMask(op.dropout, op.token_rows), op.x.rows,
               op.x.cols);
      });
    });
  });
}

void cuda_run(const BranchBackward& op, Stream stream, std::byte*) {
  with_type(op.dx.dtype, [&](auto residual) {
    with_type_beside(residual, op.d_branch.dtype, [&](auto compute) {
      with_width({op.dx, op.d_branch}, [&](auto width) {
        using R = decltype(residual);
        using C = decltype(compute);
        constexpr int n = decltype(width)::value;
        launch(stream, shape_with_amax(op.dx.rows, op.dx.cols, n, op.amax), branch_backward<R, C, n>,
               Rows<const R>(op.dx), Rows<C>(op.d_branch), DropoutMask(op.dropout, op.token_rows), op.dx.rows,
               op.dx.cols, op.amax.as<float>());
      });
    });
  });
}

void cuda_run(const ActivationForward& op, Stream stream, std::byte* scratch) {
  if (op.fp8.given()) return run_to_fp8(op, stream, scratch);
  with_type(op.y.dtype, [&](auto compute) {
    with_width({op.x, op.bias, op.y},
               [&](auto width) { launch_activation<decltype(compute), decltype(width)::value>(op, op.y, stream); });
  });
}

void cuda_run(const ActivationBackward& op, Stream stream, std::byte* scratch) {
  if (op.fp8.given()) return run_to_fp8(op, stream, scratch);
  with_type(op.dy.dtype, [&](auto compute) {
    with_width({op.x, op.bias, op.dy, op.dx},
               [&](auto width) { launch_activation<decltype(compute), decltype(width)::value>(op, op.dx, stream); });
  });
}

}  // namespace gptrain::cuda
