// Norm and rotary embedding of queries and keys, with a launch for each. A head's vector lies in the registers of a few
// neighbouring threads; each has the same positions in both halves, so that it can rotate them. The angles, in f64, are
// computed once for all heads of a row.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "kernels/column_sums.h"
#include "kernels/rows.h"
#include "kernels/run.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

constexpr int most_threads = 256;
constexpr int most_rows_at_once = 16;
constexpr int64_t forward_blocks = 2112;

// Division of the heads of several rows among a block's threads.
struct HeadShape {
  int size;  // features of a head, D
  int half;  // start of the second half; for odd D the second half is one shorter
  int num_heads;
  int lanes;         // threads per head: a power of two, at most a warp
  int rows_at_once;  // above 1 if a row has too few heads for a block

  HeadShape(int64_t head_size, int64_t cols, int width)
      : size(static_cast<int>(head_size)),
        half((size + 1) / 2),
        num_heads(static_cast<int>(cols / head_size)),
        lanes(1) {
    while (lanes < 32 && lanes * width < half) lanes *= 2;
    const int most_rows = std::min(most_rows_at_once, std::max(1, 2048 / half));
    rows_at_once = std::clamp(most_threads / (num_heads * lanes), 1, most_rows);
  }
  unsigned threads() const {
    return static_cast<unsigned>(std::min(most_threads, (rows_at_once * num_heads * lanes + 31) / 32 * 32));
  }
  int64_t blocks(int64_t rows, int64_t most) const { return std::min((rows + rows_at_once - 1) / rows_at_once, most); }
};

// Pair i rotates by t times its frequency (base/rotary.h).
struct Rotary {
  int pairs;  // D / 2; 0: no rotation
  RotaryAngles angles;
  double log2_theta;
  RowTokens tokens;

  template <typename Op>
  explicit Rotary(const Op& op)
      : pairs(op.rotary ? static_cast<int>(op.head_size / 2) : 0),
        angles(op.angles),
        log2_theta(std::log2(op.angles.theta)),
        tokens(op.token_rows) {}
  // Returns the shared memory of Turns; never 0, also without rotation.
  size_t shared_bytes(int rows_at_once) const {
    const size_t of_pair = sizeof(double) + 4 * static_cast<size_t>(rows_at_once) * sizeof(float);
    return std::max(static_cast<size_t>(pairs) * of_pair, sizeof(double));
  }
};

// Sine and cosine of pi times x. Without the search for multiples of pi in large angles, which takes a stack.
__device__ inline void sine_and_cosine(double x, double& sine, double& cosine) {
#ifdef __CUDACC__
  sincospi(x, &sine, &cosine);
#else
  sincos(std::remainder(x, 2.0) * std::numbers::pi, &sine, &cosine);
#endif
}

// Cosines and sines of the current rows in shared memory, double-buffered: while some threads rotate these rows' heads,
// others prepare the next rows.
class Turns {
 public:
  __device__ Turns(const Rotary& rotary, int rows_at_once)
      : rotary_(rotary),
        rows_at_once_(rows_at_once),
        frequencies_(&shared<double>()),
        values_(reinterpret_cast<float*>(frequencies_ + rotary.pairs)) {
    for (int i = static_cast<int>(threadIdx.x); i < rotary.pairs; i += static_cast<int>(blockDim.x))
      frequencies_[i] =
          rotary.angles.scaled(exp2(-static_cast<double>(i) / rotary.pairs * rotary.log2_theta)) / std::numbers::pi;
  }

  // Prepares the rows from `first` on. REQUIRES: all threads of the block call it.
  __device__ void prepare(int64_t first, int64_t rows) {
    if (rotary_.pairs == 0) return;
    odd_ = !odd_;
    for (int k = 0; k < rows_at_once_ && first + k < rows; ++k) {
      const auto row = static_cast<uint32_t>(first + k);
      const auto token = static_cast<double>(rotary_.tokens.of(row).token);
      // A thread uses only frequencies that it has written.
      for (int i = static_cast<int>(threadIdx.x); i < rotary_.pairs; i += static_cast<int>(blockDim.x)) {
        double sine, cosine;
        sine_and_cosine(token * frequencies_[i], sine, cosine);
        at(k)[i] = static_cast<float>(cosine);
        at(k)[rotary_.pairs + i] = static_cast<float>(sine);
      }
    }
    __syncthreads();
  }

  // Rotates (a, b) of row first + k, forward or back.
  template <int N>
  __device__ void turn(int k, int pair, float direction, float (&a)[N], float (&b)[N]) const {
    const auto cosines = load<N>(at(k) + pair);
    const auto sines = load<N>(at(k) + rotary_.pairs + pair);
    for (int i = 0; i < N; ++i) {
      const float sine = direction * sines.at[i];
      const float turned = a[i] * cosines.at[i] - b[i] * sine;
      b[i] = b[i] * cosines.at[i] + a[i] * sine;
      a[i] = turned;
    }
  }

 private:
  __device__ float* at(int k) const { return values_ + ((odd_ ? rows_at_once_ : 0) + k) * 2 * rotary_.pairs; }

  Rotary rotary_;
  int rows_at_once_;
  double* frequencies_;  // half turns per token
  float* values_;        // [2 buffers, rows at once, cosines and sines, pairs]
  bool odd_ = false;
};

// A thread's part of a head's vector.
template <int N, int P>
struct Halves {
  float a[P][N], b[P][N];
};

// Calls body(index in the thread's registers, column in the half).
template <int N, int P, typename Body>
__device__ void for_own_columns(const HeadShape& shape, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x) % shape.lanes;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int column = (p * shape.lanes + lane) * N;
    if (column < shape.half) body(p, column);
  }
}

// Columns of other threads, and the one missing in an odd head's second half, are zero.
template <int N, int P, typename T>
__device__ Halves<N, P> load_halves(const T* head, const HeadShape& shape) {
  Halves<N, P> x{};
  for_own_columns<N, P>(shape, [&](int p, int column) {
    const auto a = load<N>(head + column);
    for (int i = 0; i < N; ++i) x.a[p][i] = to_float(a.at[i]);
    if (shape.half + column >= shape.size) return;
    const auto b = load<N>(head + shape.half + column);
    for (int i = 0; i < N; ++i) x.b[p][i] = to_float(b.at[i]);
  });
  return x;
}

template <int N, int P, typename C>
__device__ void store_halves(const Halves<N, P>& y, C* head, const HeadShape& shape) {
  for_own_columns<N, P>(shape, [&](int p, int column) {
    Pack<C, N> a, b;
    for (int i = 0; i < N; ++i) {
      a.at[i] = rounded_to<C>(y.a[p][i]);
      b.at[i] = rounded_to<C>(y.b[p][i]);
    }
    store(head + column, a);
    if (shape.half + column < shape.size) store(head + shape.half + column, b);
  });
}

// Calls body(value of x, value of y at the same position) for all of the thread's values.
template <int N, int P, typename X, typename Body>
__device__ void for_each_value(X& x, const Halves<N, P>& y, const Body& body) {
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      body(x.a[p][i], y.a[p][i]);
      body(x.b[p][i], y.b[p][i]);
    }
  }
}

template <int N, int P>
__device__ void add_products(Halves<N, P>& sums, const Halves<N, P>& x, const Halves<N, P>& y) {
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums.a[p][i] += x.a[p][i] * y.a[p][i];
      sums.b[p][i] += x.b[p][i] * y.b[p][i];
    }
  }
}

// Returns the sum over the threads of a head to each of them.
__device__ float sum_of_head(float value, const HeadShape& shape) {
  for (int lanes = shape.lanes / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
  return value;
}

// Calls body(row - first, head, true if that head exists) for the block's rows from `first` on. All lanes of a warp
// take part, so that they can sum by shuffles.
template <typename Body>
__device__ void for_each_head(const HeadShape& shape, int64_t first, int64_t rows, const Body& body) {
  const int heads_at_once = static_cast<int>(blockDim.x) / shape.lanes;
  const int own = static_cast<int>(threadIdx.x) / shape.lanes;
  const int first_of_warp = static_cast<int>(threadIdx.x) / 32 * 32 / shape.lanes;
  const int heads = shape.rows_at_once * shape.num_heads;
  for (int start = 0; start + first_of_warp < heads; start += heads_at_once) {
    const int k = (start + own) / shape.num_heads;
    body(k, (start + own) % shape.num_heads, k < shape.rows_at_once && first + k < rows);
  }
}

// Operands for the queries, or for the keys.
template <typename C>
struct ForwardOperands {
  Rows<const C> x;
  Rows<C> y;
  const float* gamma;  // null: no norm
  Rows<float> rstd;    // columns of these heads
  float eps;
  int64_t rows;
  float offset;  // added to gamma
};

template <typename C, int N, int P>
__global__ void query_key_forward(ForwardOperands<C> op, HeadShape shape, Rotary rotary) {
  Turns turns(rotary, shape.rows_at_once);
  const int64_t step = static_cast<int64_t>(gridDim.x) * shape.rows_at_once;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * shape.rows_at_once; first < op.rows; first += step) {
    turns.prepare(first, op.rows);
    for_each_head(shape, first, op.rows, [&](int k, int head, bool exists) {
      const int64_t column = static_cast<int64_t>(head) * shape.size;
      Halves<N, P> x{};
      if (exists) x = load_halves<N, P>(op.x.at(first + k, column), shape);
      if (op.gamma != nullptr) {
        float squares = 0;
        for_each_value(x, x, [&](float value, float) { squares += value * value; });
        const float mean = sum_of_head(squares, shape) / static_cast<float>(shape.size);
        const float rstd = 1.0F / sqrtf(mean + op.eps);
        for_each_value(x, load_halves<N, P>(op.gamma, shape),
                       [&](float& value, float gamma) { value *= rstd * (op.offset + gamma); });
        if (exists && static_cast<int>(threadIdx.x) % shape.lanes == 0) *op.rstd.at(first + k, head) = rstd;
      }
      if (!exists) return;
      if (rotary.pairs > 0)
        for_own_columns<N, P>(shape, [&](int p, int pair) { turns.turn(k, pair, 1.0F, x.a[p], x.b[p]); });
      store_halves(x, op.y.at(first + k, column), shape);
    });
  }
}

// Operands for the queries, or for the keys.
template <typename C>
struct BackwardOperands {
  Rows<C> gradient;  // in: gradient of y; out: gradient of x
  Rows<const C> x;
  const float* gamma;  // null: no norm
  Rows<const float> rstd;
  float* partials;  // [blocks, D] for d_gamma
  int64_t rows;
  float offset;  // added to gamma
};

// Sums each column over the block's threads and writes the block's row of partial sums.
template <int N, int P>
__device__ void leave_partials(Halves<N, P> sums, const HeadShape& shape, float* partials) {
  for_each_value(sums, sums, [&](float& value, float) {
    for (int lanes = 16; lanes >= shape.lanes; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
  });
  float* const of_warps = &shared<float>();  // [warps, D]
  __syncthreads();                           // until no thread reads the turns stored there
  if (static_cast<int>(threadIdx.x) % 32 < shape.lanes)
    store_halves(sums, of_warps + static_cast<int>(threadIdx.x) / 32 * shape.size, shape);
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < shape.size; column += static_cast<int>(blockDim.x)) {
    float total = 0;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) total += of_warps[warp * shape.size + column];
    partials[static_cast<int64_t>(blockIdx.x) * shape.size + column] = total;
  }
}

template <typename C, int N, int P>
__global__ void query_key_backward(BackwardOperands<C> op, HeadShape shape, Rotary rotary) {
  Turns turns(rotary, shape.rows_at_once);
  Halves<N, P> d_gamma{};
  const int64_t step = static_cast<int64_t>(gridDim.x) * shape.rows_at_once;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * shape.rows_at_once; first < op.rows; first += step) {
    turns.prepare(first, op.rows);
    for_each_head(shape, first, op.rows, [&](int k, int head, bool exists) {
      const int64_t column = static_cast<int64_t>(head) * shape.size;
      Halves<N, P> gradient{};
      if (exists) gradient = load_halves<N, P>(op.gradient.at(first + k, column), shape);
      if (exists && rotary.pairs > 0)
        for_own_columns<N, P>(shape,
                              [&](int p, int pair) { turns.turn(k, pair, -1.0F, gradient.a[p], gradient.b[p]); });
      if (op.gamma != nullptr) {
        Halves<N, P> normed{};
        float rstd = 0;
        if (exists) {
          normed = load_halves<N, P>(op.x.at(first + k, column), shape);
          rstd = *op.rstd.at(first + k, head);
        }
        for_each_value(normed, normed, [&](float& value, float) { value *= rstd; });
        add_products(d_gamma, gradient, normed);
        for_each_value(gradient, load_halves<N, P>(op.gamma, shape),
                       [&](float& value, float gamma) { value *= op.offset + gamma; });
        float product = 0;
        for_each_value(gradient, normed, [&](float value, float x_hat) { product += value * x_hat; });
        const float mean = sum_of_head(product, shape) / static_cast<float>(shape.size);
        for_each_value(gradient, normed, [&](float& value, float x_hat) { value = rstd * (value - x_hat * mean); });
      }
      if (exists) store_halves(gradient, op.gradient.at(first + k, column), shape);
    });
  }
  if (op.gamma != nullptr) leave_partials(d_gamma, shape, op.partials);
}

// Calls body(pack width, packs of a thread per half) with constants, for heads that fit.
template <typename Body>
void with_head_shape(int64_t head_size, bool packs, const Body& body) {
  const int64_t half = (head_size + 1) / 2;
  if (half > 512) throw std::logic_error("a head is too long for the queries' and keys' kernels");
  if (packs && head_size % (2 * pack_width) == 0) {
    const std::integral_constant<int, pack_width> width;
    if (half <= 32 * pack_width) return body(width, std::integral_constant<int, 1>{});
    return body(width, std::integral_constant<int, 2>{});
  }
  const std::integral_constant<int, 1> width;
  if (half <= 32) return body(width, std::integral_constant<int, 1>{});
  if (half <= 64) return body(width, std::integral_constant<int, 2>{});
  body(width, std::integral_constant<int, 16>{});
}

template <typename C>
void launch_forward(const QueryKeyForward& op, const Matrix& x, const Matrix& gamma, const Matrix& y,
                    const Matrix& rstd, Stream stream) {
  const ForwardOperands<C> operands{.x = Rows<const C>(x),
                                    .y = Rows<C>(y),
                                    .gamma = gamma.as<const float>(),
                                    .rstd = Rows<float>(rstd),
                                    .eps = static_cast<float>(op.eps),
                                    .rows = x.rows,
                                    .offset = op.offset ? 1.0F : 0.0F};
  const Rotary rotary(op);
  with_head_shape(op.head_size, in_packs({x, gamma, y}), [&](auto width, auto packs) {
    constexpr int n = decltype(width)::value;
    constexpr int p = decltype(packs)::value;
    const HeadShape shape(op.head_size, x.cols, n);
    launch(stream, {shape.blocks(x.rows, forward_blocks), shape.threads(), rotary.shared_bytes(shape.rows_at_once)},
           query_key_forward<C, n, p>, operands, shape, rotary);
  });
}

// Matrices of the queries, or of the keys.
struct BackwardMatrices {
  const Matrix &x, &gamma, &rstd, &gradient, &gamma_sums;
};

template <typename C>
void launch_backward(const QueryKeyBackward& op, const BackwardMatrices& matrices, Stream stream, float* partials) {
  const auto& [x, gamma, rstd, gradient, gamma_sums] = matrices;
  const BackwardOperands<C> operands{.gradient = Rows<C>(gradient),
                                     .x = Rows<const C>(x),
                                     .gamma = gamma.as<const float>(),
                                     .rstd = Rows<const float>(rstd),
                                     .partials = partials,
                                     .rows = gradient.rows,
                                     .offset = op.offset ? 1.0F : 0.0F};
  const Rotary rotary(op);
  with_head_shape(op.head_size, in_packs({x, gamma, gradient}), [&](auto width, auto packs) {
    constexpr int n = decltype(width)::value;
    constexpr int p = decltype(packs)::value;
    const HeadShape shape(op.head_size, gradient.cols, n);
    const int64_t blocks = shape.blocks(gradient.rows, gpu_query_key_blocks);
    const size_t of_sums = gamma.given() ? shape.threads() / 32 * static_cast<size_t>(shape.size) * sizeof(float) : 0;
    launch(stream, {blocks, shape.threads(), std::max(rotary.shared_bytes(shape.rows_at_once), of_sums)},
           query_key_backward<C, n, p>, operands, shape, rotary);
    if (!gamma.given()) return;
    cuda_run(PartialSums<double>{partials, blocks, shape.size, gamma_sums.as<double>(), nullptr}, stream);
  });
}

}  // namespace

// Heads of more than 1024 features throw std::logic_error.
void cuda_run(const QueryKeyForward& op, Stream stream, std::byte*) {
  const int64_t q_heads = op.q.cols / op.head_size;
  const Matrix k_rstd = op.rstd.given() ? op.rstd.column_range(q_heads, op.k.cols / op.head_size) : Matrix();
  with_type(op.q.dtype, [&](auto type) {
    launch_forward<decltype(type)>(op, op.q, op.q_gamma, op.q_out, op.rstd, stream);
    launch_forward<decltype(type)>(op, op.k, op.k_gamma, op.k_out, k_rstd, stream);
  });
}

void cuda_run(const QueryKeyBackward& op, Stream stream, std::byte* scratch) {
  const int64_t q_heads = op.dq.cols / op.head_size;
  const Matrix k_rstd = op.rstd.given() ? op.rstd.column_range(q_heads, op.dk.cols / op.head_size) : Matrix();
  auto* const partials = reinterpret_cast<float*>(scratch);
  with_type(op.dq.dtype, [&](auto type) {
    using C = decltype(type);
    launch_backward<C>(
        op, {.x = op.q, .gamma = op.q_gamma, .rstd = op.rstd, .gradient = op.dq, .gamma_sums = op.q_gamma_sums}, stream,
        partials);
    launch_backward<C>(
        op, {.x = op.k, .gamma = op.k_gamma, .rstd = k_rstd, .gradient = op.dk, .gamma_sums = op.k_gamma_sums}, stream,
        partials);
  });
}

}  // namespace gptrain::cuda
