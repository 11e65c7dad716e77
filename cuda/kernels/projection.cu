// Random projections of rows, generated where they are used.
#include <cmath>

#include "kernels/column_sums.h"
#include "kernels/rows.h"
#include "kernels/run.h"
#include "ops/normal_values.h"

namespace gptrain::inline cuda {
namespace {

// Random numbers of a sample and a position in its projection.
struct Draw {
  PhiloxKey key;
  const int64_t* sample_ids;

  __device__ std::array<uint32_t, 4> words(uint32_t first, uint32_t second, uint32_t sequence) const {
    const auto sample = static_cast<uint64_t>(sample_ids[sequence]);
    return philox(key, {first, second, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
  }
};

constexpr int drawn_at_once = 4;

__host__ __device__ constexpr int64_t whole_draws(int64_t cols) {
  return (cols + drawn_at_once - 1) / drawn_at_once * drawn_at_once;
}

// Computed for pi x by a device function: cos and sin of x would reserve local memory for the reduction of large
// arguments.
struct CosineAndSine {
  float cosine, sine;
};
__device__ CosineAndSine of_half_turns(float x) {
#ifdef __CUDACC__
  CosineAndSine result;
  sincospif(x, &result.sine, &result.cosine);
  return result;
#else
  constexpr float pi = 3.14159265F;
  return {std::cos(pi * x), std::sin(pi * x)};
#endif
}

// Returns one element of the sequence's random cosines.
__device__ float cosine(const Draw& draw, uint32_t sequence, int64_t token, int64_t tokens, int64_t column,
                        int64_t cols) {
  const uint32_t word = draw.words(static_cast<uint32_t>(column), dct_choice, sequence)[0];
  const DctElement element = dct_element(tokens, cols, sampled_row(tokens, cols, column, word), token);
  const float half_turns = static_cast<float>(element.turn) / static_cast<float>(2 * tokens);
  return std::sqrt(element.squared_factor) * of_half_turns(half_turns).cosine;
}

template <ProjectionKind kind, typename T>
__global__ void fill_projection(Rows<T> s, Draw draw, Divisor sequence_length, int64_t tokens, int64_t rows,
                                int64_t cols) {
  for_each_pack<drawn_at_once>(rows, whole_draws(cols), [&](int64_t row, int64_t column) {
    const auto [sequence, token] = sequence_length.divide(static_cast<uint32_t>(row));
    const auto of_column = kind == ProjectionKind::dct ? 0U : static_cast<uint32_t>(column / drawn_at_once);
    const auto words = draw.words(of_column, token, sequence);
    float values[drawn_at_once];
    if constexpr (kind == ProjectionKind::gauss) {
#pragma unroll
      for (size_t i = 0; i < drawn_at_once; i += 2) {
        const NormalPair pair = normal_pair(words[i], words[i + 1]);
        values[i] = pair.first;
        values[i + 1] = pair.second;
      }
    } else if constexpr (kind == ProjectionKind::dct) {
      const float sign = words[0] >> 31 != 0 ? -1.0F : 1.0F;
#pragma unroll
      for (int i = 0; i < drawn_at_once; ++i)
        values[i] = column + i < cols ? sign * cosine(draw, sequence, token, tokens, column + i, cols) : 0.0F;
    } else {
#pragma unroll
      for (int i = 0; i < drawn_at_once; ++i) values[i] = words[static_cast<size_t>(i)] >> 31 != 0 ? -1.0F : 1.0F;
    }
#pragma unroll
    for (int i = 0; i < drawn_at_once; ++i)
      if (column + i < cols) *s.at(row, column + i) = rounded_to<T>(values[i]);
  });
}

// Division of a sequence into runs of tokens, of each of which one row is sampled.
struct SequenceRuns {
  int64_t tokens, count;
  Divisor divisor;  // by count
};

template <typename T, int N>
__global__ void sample(Rows<const T> x, Rows<T> y, Draw draw, SequenceRuns runs, int64_t rows, int64_t cols) {
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) {
    const auto [sequence, j] = runs.divisor.divide(static_cast<uint32_t>(row));
    const SampledRow sampled = sampled_row(runs.tokens, runs.count, j, draw.words(j, 0, sequence)[0]);
    const float factor = std::sqrt(static_cast<float>(sampled.run));
    const auto in = load<N>(x.at(sequence * runs.tokens + sampled.row, column));
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = rounded_to<T>(factor * to_float(in.at[i]));
    store(y.at(row, column), out);
  });
}

}  // namespace

void cuda_run(const ProjectionMatrix& op, Stream stream, std::byte*) {
  with_type(op.s.dtype, [&](auto type) {
    using T = decltype(type);
    auto* kernel = op.kind == ProjectionKind::gauss        ? fill_projection<ProjectionKind::gauss, T>
                   : op.kind == ProjectionKind::rademacher ? fill_projection<ProjectionKind::rademacher, T>
                                                           : fill_projection<ProjectionKind::dct, T>;
    launch(stream, shape_of_elements(op.s.rows, whole_draws(op.s.cols), drawn_at_once), kernel, Rows<T>(op.s),
           Draw{op.key, op.sample_ids}, Divisor(op.sequence_length), op.sequence_length, op.s.rows, op.s.cols);
  });
}

void cuda_run(const SampleRows& op, Stream stream, std::byte*) {
  const int64_t runs = op.y.rows / (op.x.rows / op.sequence_length);
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto start = [&](auto width) {
      constexpr int n = decltype(width)::value;
      launch(stream, shape_of_elements(op.y.rows, op.y.cols, n), sample<T, n>, Rows<const T>(op.x), Rows<T>(op.y),
             Draw{op.key, op.sample_ids}, SequenceRuns{op.sequence_length, runs, Divisor(runs)}, op.y.rows, op.y.cols);
    };
    if (in_packs({op.x, op.y})) return start(std::integral_constant<int, pack_width>{});
    start(std::integral_constant<int, 1>{});
  });
}

void cuda_run(const BiasGradient& op, Stream stream, std::byte* scratch) {
  cuda_run(ColumnSums{op.dy, op.d_bias, op.accumulate}, stream, scratch);
}

}  // namespace gptrain::cuda
