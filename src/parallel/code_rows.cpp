#include "parallel/code_rows.h"

#include <cstdint>

#include "ops/block_codes.h"

namespace gptrain::inline parallel {
namespace {

// Calls body(values, codes, scales) for parts of a row: rows that threads can share, then the rest.
template <typename Body>
void for_each_part_of_row(const Matrix& values, const CodeRow& row, const Body& body) {
  constexpr int64_t cols = 128 * code_block;
  const auto call = [&](int64_t first, int64_t rows, int64_t width) {
    body(Matrix(values.column_range(first, 1).data, values.dtype, rows, width),
         Matrix(row.codes + code_bytes_of(first, row.bits), DType::u8, rows, code_bytes_of(width, row.bits)),
         Matrix(row.scales + first / code_block * dtype_bytes(DType::f32), DType::f32, rows, code_blocks(width)));
  };
  if (const int64_t rows = values.cols / cols; rows > 0) call(0, rows, cols);
  if (const int64_t rest = values.cols % cols; rest > 0) call(values.cols - rest, 1, rest);
}

}  // namespace

void encode_row(Backend& backend, const Matrix& values, const CodeRow& to) {
  for_each_part_of_row(values, to, [&](const Matrix& x, const Matrix& codes, const Matrix& scales) {
    backend.run(EncodeBlocks{.x = x, .codes = codes, .scales = scales, .bits = to.bits});
  });
}

void decode_row(Backend& backend, const CodeRow& from, const Matrix& values) {
  for_each_part_of_row(values, from, [&](const Matrix& x, const Matrix& codes, const Matrix& scales) {
    backend.run(DecodeBlocks{.codes = codes, .scales = scales, .x = x, .bits = from.bits});
  });
}

}  // namespace gptrain::parallel
