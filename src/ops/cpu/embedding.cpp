#include <cstring>
#include <fmt/format.h>
#include <stdexcept>

#include "ops/cpu/cpu_ops.h"

namespace gptrain::inline ops {
namespace {

void check_tokens(std::string_view op, const int32_t* tokens, int64_t num_tokens, int64_t vocab_size) {
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      throw std::logic_error(
          fmt::format("{}: tokens[{}] = {} is outside the table of {} rows", op, i, tokens[i], vocab_size));
    }
  }
}

}  // namespace

void cpu_run(const EmbeddingForward& op, const CpuContext& context) {
  check_tokens(EmbeddingForward::name, op.tokens, op.x.rows, op.num_tokens > 0 ? op.num_tokens : op.token_table.rows);
  run_rows(op, op.x.rows, context.kernels->embedding_forward, context);
}

// In each block of columns one thread sums all of a table row, so that sums are in row order. Threads divide the work
// by columns and, if there are more threads than blocks of columns, by classes of tokens.
void cpu_run(const EmbeddingBackward& op, const CpuContext& context) {
  check_tokens(EmbeddingBackward::name, op.tokens, op.dx.rows,
               op.num_tokens > 0 ? op.num_tokens : op.d_token_table.rows);
  const int64_t cols = op.dx.cols;
  if (!op.accumulate_token) {
    parallel_shares(context.num_threads, op.d_token_table.rows, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row)
        std::memset(op.d_token_table.row_range(row, 1).data, 0, static_cast<size_t>(cols) * sizeof(float));
    });
  }
  constexpr int64_t narrowest = 64;
  const int64_t column_blocks = std::clamp<int64_t>(cols / narrowest, 1, context.num_threads);
  const int64_t classes = (context.num_threads + column_blocks - 1) / column_blocks;
  const int64_t units = (cols + narrowest - 1) / narrowest;
  parallel_shares(context.num_threads, column_blocks * classes, [&](int64_t first, int64_t end) {
    for (int64_t task = first; task < end; ++task) {
      const int64_t block = task / classes;
      const int64_t first_column = units * block / column_blocks * narrowest;
      const int64_t end_column = std::min(units * (block + 1) / column_blocks * narrowest, cols);
      context.kernels->embedding_backward_tokens(op, task % classes, classes, first_column, end_column);
    }
  });
  if (op.d_position_table.given())
    run_rows(op, op.d_position_table.rows, context.kernels->embedding_backward_positions, context);
}

}  // namespace gptrain::ops
