#include "parallel/coded_weights.h"

#include <algorithm>

#include "model/record.h"
#include "ops/block_codes.h"
#include "parallel/code_rows.h"

namespace gptrain::inline parallel {
namespace {

constexpr int64_t weight_bytes = dtype_bytes(DType::bf16);

int64_t scale_bytes(int64_t elements) { return align_up(code_blocks(elements) * dtype_bytes(DType::f32)); }

// Returns the largest number of last elements that are decoded into memory of their own.
int64_t most_last(int64_t elements) {
  return std::min(elements, std::max(2 * code_block, code_blocks(elements / 64) * code_block));
}

}  // namespace

int64_t CodedWeights::bytes_behind(int64_t elements) {
  return scale_bytes(elements) + align_up(most_last(elements) * weight_bytes);
}

std::byte* CodedWeights::codes(int64_t first) const { return weights_ + elements_ + first; }

std::byte* CodedWeights::scales(int64_t first) const {
  return weights_ + align_up(elements_ * weight_bytes) + first / code_block * dtype_bytes(DType::f32);
}

Matrix CodedWeights::weights(int64_t first, int64_t count) const {
  return {weights_ + first * weight_bytes, DType::bf16, 1, count};
}

void CodedWeights::encode(Backend& backend, const Matrix& weights, int64_t first) const {
  encode_row(backend, weights, {codes(first), scales(first)});
}

// Decodes the first half of the elements that are left: their weights end where their codes begin.
void CodedWeights::decode(Backend& backend) const {
  int64_t first = 0;
  while (elements_ - first > most_last(elements_)) {
    const int64_t count = (elements_ - first) / 2 / code_block * code_block;
    decode_row(backend, {codes(first), scales(first)}, weights(first, count));
    first += count;
  }
  const Matrix last(scales(0) + scale_bytes(elements_), DType::bf16, 1, elements_ - first);
  decode_row(backend, {codes(first), scales(first)}, last);
  backend.run(Cast{.from = last, .to = weights(first, last.cols)});
}

}  // namespace gptrain::parallel
