// Embedding tables: look-up of rows, and gradients. Backward sorts the rows of the batch by token, so that rows of one
// token are adjacent and in order. Warps add them in that order, without atomics. A frequent token's rows are cut into
// pieces at fixed indices of the sorted list, which are added up last: one warp alone would take as long for that token
// as all warps for the other tokens.
#include <limits>
#include <utility>

#include "kernels/rows.h"
#include "kernels/run.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

constexpr unsigned threads = 256;

template <typename R, typename C>
struct ForwardOperands {
  const int32_t* tokens;
  Rows<const C> token_table, position_table;  // null position data: no position table
  Rows<R> x;
  int64_t first_token, table_rows;
  RowTokens token_rows;
  int64_t rows, cols;
  float token_scale;
};

template <typename R, typename C, int N>
__global__ void embedding_forward(ForwardOperands<R, C> op, DropoutMask dropout) {
  for_each_pack<N>(op.rows, op.cols, [&](int64_t row, int64_t column) {
    float values[N] = {};
    const int64_t token_row = op.tokens[row] - op.first_token;
    if (token_row >= 0 && token_row < op.table_rows) {
      const auto token = load<N>(op.token_table.at(token_row, column));
      for (int i = 0; i < N; ++i) values[i] = op.token_scale * to_float(token.at[i]);
    }
    if (op.position_table.data != nullptr) {
      const uint32_t token = op.token_rows.of(static_cast<uint32_t>(row)).token;
      const auto position = load<N>(op.position_table.at(token, column));
      for (int i = 0; i < N; ++i) values[i] += to_float(position.at[i]);
    }
    dropout.apply(row, column, values);
    Pack<R, N> x;
    for (int i = 0; i < N; ++i) x.at[i] = rounded_to<R>(values[i]);
    store(op.x.at(row, column), x);
  });
}

// Sort key: the token's row in the table in the upper bits, the row of the batch in the lower. No two are equal.
using Key = uint64_t;

constexpr uint32_t no_token = std::numeric_limits<uint32_t>::max();  // a token outside the table
constexpr Key no_key = std::numeric_limits<Key>::max();

__device__ uint32_t token_of(Key key) { return static_cast<uint32_t>(key >> 32); }
__device__ uint32_t row_of(Key key) { return static_cast<uint32_t>(key); }

constexpr int tile_keys = 512;
constexpr int64_t runs_merged = 16;  // sorted runs merged in one pass

struct Tile {
  Key keys[tile_keys];
};

// Creates the keys and sorts each tile of them: a key's rank is the number of smaller keys.
__global__ void sort_tiles(const int32_t* tokens, int64_t first_token, int64_t table_rows, Key* keys, int64_t rows) {
  Tile& tile = shared<Tile>();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile_keys;
  const int64_t row = first + threadIdx.x;
  Key key = no_key;
  if (row < rows) {
    const int64_t token_row = tokens[row] - first_token;
    const bool in_table = token_row >= 0 && token_row < table_rows;
    key = Key{in_table ? static_cast<uint32_t>(token_row) : no_token} << 32 | static_cast<uint32_t>(row);
  }
  tile.keys[threadIdx.x] = key;
  __syncthreads();
  int index = 0;
  for (const Key other : tile.keys) index += other < key ? 1 : 0;
  if (row < rows) keys[first + index] = key;
}

// Returns the number of smaller keys in a sorted run.
__device__ int64_t count_smaller(const Key* run, int64_t count, Key key) {
  int64_t first = 0, end = count;
  while (first < end) {
    const int64_t middle = (first + end) / 2;
    if (run[middle] < key) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first;
}

// Merges groups of neighbouring sorted runs: a key's rank in its group is the number of smaller keys in all its runs.
__global__ void merge_runs(const Key* from, Key* to, int64_t run, int64_t rows) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows) return;
  const Key key = from[i];
  const int64_t group = i / (run * runs_merged) * (run * runs_merged);
  const int64_t end = group + run * runs_merged < rows ? group + run * runs_merged : rows;
  int64_t index = group;
  for (int64_t first = group; first < end; first += run)
    index += count_smaller(from + first, first + run < end ? run : end - first, key);
  to[index] = key;
}

// Returns the sorted keys of all rows, in one half of the scratch memory.
const Key* sort_rows(const EmbeddingBackward& op, Stream stream, std::byte* scratch) {
  const int64_t rows = op.dx.rows;
  auto* keys = reinterpret_cast<Key*>(scratch);
  Key* other = keys + rows;
  launch(stream, {(rows + tile_keys - 1) / tile_keys, tile_keys, sizeof(Tile)}, sort_tiles, op.tokens, op.first_token,
         op.d_token_table.rows, keys, rows);
  for (int64_t run = tile_keys; run < rows; run *= runs_merged) {
    launch(stream, {(rows + threads - 1) / threads, threads, 0}, merge_runs, keys, other, run, rows);
    std::swap(keys, other);
  }
  return keys;
}

template <int N>
__global__ void clear(Rows<float> table, int64_t rows, int64_t cols) {
  for_each_pack<N>(rows, cols, [&](int64_t row, int64_t column) { store(table.at(row, column), Pack<float, N>{}); });
}

template <typename R, int N>
__device__ void add_row(const Pack<R, N>& dx, float scale, const DropoutMask& dropout, int64_t row, int64_t column,
                        float (&sums)[N]) {
  float values[N];
  for (int i = 0; i < N; ++i) values[i] = scale * to_float(dx.at[i]);
  dropout.apply(row, column, values);
  for (int i = 0; i < N; ++i) sums[i] += values[i];
}

template <int N>
__device__ void load_sums(const float* from, float (&sums)[N]) {
  const auto before = load<N>(from);
  for (int i = 0; i < N; ++i) sums[i] = before.at[i];
}

template <int N>
__device__ void store_sums(float* to, const float (&sums)[N]) {
  Pack<float, N> pack;
  for (int i = 0; i < N; ++i) pack.at[i] = sums[i];
  store(to, pack);
}

// Returns the number of warps that divide the columns of a row.
__host__ __device__ constexpr int64_t warps_of_row(int64_t cols, int width) { return (cols / width + 31) / 32; }

// Gradient of the embedding's output.
template <typename R>
struct OutputGradient {
  Rows<const R> dx;
  DropoutMask dropout;
  int64_t rows, cols;
  float token_scale;
};

constexpr int64_t piece = gpu_token_piece;

// Sums of the pieces that begin at multiples of `piece` amid a token's rows. Piece i's are at i - 1.
struct PieceSums {
  float* sums;
  int64_t cols;

  __device__ float* at(int64_t i, int64_t column) const { return sums + (i - 1) * cols + column; }
};

// Returns true if the sorted rows before and at `at` have the same token of the table.
__device__ bool goes_on(const Key* keys, int64_t at) {
  return at > 0 && token_of(keys[at - 1]) == token_of(keys[at]) && token_of(keys[at]) != no_token;
}

// The warps at the first key of each piece add its rows. A token's first piece goes to the table.
template <typename R, int N>
__global__ void sum_tokens(const Key* keys, OutputGradient<R> gradient, Rows<float> d_table, PieceSums pieces,
                           bool accumulate) {
  const int64_t rows = gradient.rows, cols = gradient.cols;
  constexpr int in_flight = 8;  // rows loaded at once; only the additions depend on each other
  static_assert(piece % in_flight == 0);
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int64_t first = warp / warps_of_row(cols, N);
  const int64_t column = (warp % warps_of_row(cols, N) * 32 + threadIdx.x % 32) * N;
  if (first >= rows || column >= cols) return;
  const uint32_t token = token_of(keys[first]);
  const bool is_later = goes_on(keys, first);
  if (token == no_token || (is_later && first % piece != 0)) return;
  const int64_t end = (first / piece + 1) * piece < rows ? (first / piece + 1) * piece : rows;
  float sums[N] = {};
  if (accumulate && !is_later) load_sums(d_table.at(token, column), sums);
  bool more = true;
  for (int64_t at = first; more; at += in_flight) {
    uint32_t batch_rows[in_flight];
    bool has_token[in_flight];
    Pack<R, N> packs[in_flight];
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      const Key key = at + i < end ? keys[at + i] : no_key;
      batch_rows[i] = row_of(key);
      has_token[i] = token_of(key) == token;
    }
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (has_token[i]) packs[i] = load<N>(gradient.dx.at(batch_rows[i], column));
#pragma unroll
    for (int i = 0; i < in_flight; ++i)
      if (has_token[i]) add_row(packs[i], gradient.token_scale, gradient.dropout, batch_rows[i], column, sums);
    more = has_token[in_flight - 1];
  }
  store_sums(is_later ? pieces.at(first / piece, column) : d_table.at(token, column), sums);
}

// The warps at a token's second piece add its pieces to the table, in order.
template <int N>
__global__ void add_pieces(const Key* keys, int64_t rows, Rows<float> d_table, PieceSums pieces) {
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  int64_t i = warp / warps_of_row(pieces.cols, N) + 1;
  const int64_t column = (warp % warps_of_row(pieces.cols, N) * 32 + threadIdx.x % 32) * N;
  if (i * piece >= rows || column >= pieces.cols || !goes_on(keys, i * piece)) return;
  const uint32_t token = token_of(keys[i * piece]);
  // An earlier multiple amid the same token: another warp's.
  if (i > 1 && token_of(keys[(i - 1) * piece]) == token && goes_on(keys, (i - 1) * piece)) return;
  float sums[N];
  load_sums(d_table.at(token, column), sums);
  for (; i * piece < rows && token_of(keys[i * piece]) == token; ++i) {
    const auto sum = load<N>(pieces.at(i, column));
    for (int k = 0; k < N; ++k) sums[k] += sum.at[k];
  }
  store_sums(d_table.at(token, column), sums);
}

template <typename R, int N>
__global__ void sum_positions(OutputGradient<R> gradient, Rows<float> d_table, int64_t table_rows, TokenRows token_rows,
                              bool accumulate) {
  for_each_pack<N>(table_rows, gradient.cols, [&](int64_t position, int64_t column) {
    const int64_t first = token_rows.row(position);  // -1: the token has no row
    if (accumulate && first < 0) return;
    float sums[N] = {};
    if (accumulate) load_sums(d_table.at(position, column), sums);
    for (int64_t row = first; first >= 0 && row < gradient.rows; row += token_rows.length)
      add_row(load<N>(gradient.dx.at(row, column)), 1.0F, gradient.dropout, row, column, sums);
    store_sums(d_table.at(position, column), sums);
  });
}

template <typename R, int N>
void launch_backward(const EmbeddingBackward& op, Stream stream, const Key* keys, float* piece_sums) {
  const int64_t rows = op.dx.rows, cols = op.dx.cols;
  const OutputGradient<R> gradient{.dx = Rows<const R>(op.dx),
                                   .dropout = DropoutMask(op.dropout, op.token_rows),
                                   .rows = rows,
                                   .cols = cols,
                                   .token_scale = static_cast<float>(op.token_scale)};
  const Rows<float> d_tokens(op.d_token_table), d_positions(op.d_position_table);
  if (!op.accumulate_token)
    launch(stream, shape_of_elements(op.d_token_table.rows, cols, N), clear<N>, d_tokens, op.d_token_table.rows, cols);
  const int64_t warps = rows * warps_of_row(cols, N);
  const PieceSums pieces{piece_sums, cols};
  launch(stream, {(warps * 32 + threads - 1) / threads, threads, 0}, sum_tokens<R, N>, keys, gradient, d_tokens, pieces,
         op.accumulate_token);
  if (rows > piece) {
    const int64_t later_warps = (rows - 1) / piece * warps_of_row(cols, N);
    launch(stream, {(later_warps * 32 + threads - 1) / threads, threads, 0}, add_pieces<N>, keys, rows, d_tokens,
           pieces);
  }
  if (!op.d_position_table.given()) return;
  launch(stream, shape_of_elements(op.d_position_table.rows, cols, N), sum_positions<R, N>, gradient, d_positions,
         op.d_position_table.rows, op.token_rows, op.accumulate_position);
}

}  // namespace

// A token outside the vocabulary, which a device cannot report, contributes nothing.
void cuda_run(const EmbeddingForward& op, Stream stream, std::byte*) {
  with_type(op.x.dtype, [&](auto residual) {
    with_type_beside(residual, op.token_table.dtype, [&](auto compute) {
      using R = decltype(residual);
      using C = decltype(compute);
      const ForwardOperands<R, C> operands{op.tokens,
                                           Rows<const C>(op.token_table),
                                           Rows<const C>(op.position_table),
                                           Rows<R>(op.x),
                                           op.first_token,
                                           op.token_table.rows,
                                           RowTokens(op.token_rows),
                                           op.x.rows,
                                           op.x.cols,
                                           static_cast<float>(op.token_scale)};
      const auto start = [&](auto* kernel, int width) {
        launch(stream, shape_of_elements(op.x.rows, op.x.cols, width), kernel, operands,
               DropoutMask(op.dropout, op.token_rows));
      };
      if (in_packs({op.token_table, op.position_table, op.x}))
        return start(embedding_forward<R, C, pack_width>, pack_width);
      start(embedding_forward<R, C, 1>, 1);
    });
  });
}

void cuda_run(const EmbeddingBackward& op, Stream stream, std::byte* scratch) {
  const Key* const keys = sort_rows(op, stream, scratch);
  auto* const piece_sums = reinterpret_cast<float*>(reinterpret_cast<Key*>(scratch) + 2 * op.dx.rows);
  with_type(op.dx.dtype, [&](auto residual) {
    using R = decltype(residual);
    constexpr int width = 16 / sizeof(R);
    if (in_packs({op.dx, op.d_token_table, op.d_position_table}))
      return launch_backward<R, width>(op, stream, keys, piece_sums);
    launch_backward<R, 1>(op, stream, keys, piece_sums);
  });
}

}  // namespace gptrain::cuda
