// Normal random numbers. A thread computes the four numbers of a counter.
#include "kernels/rows.h"
#include "kernels/run.h"
#include "ops/normal_values.h"

namespace gptrain::inline cuda {
namespace {

constexpr int normals_at_once = 4;

template <typename T>
__global__ void fill_normal(Rows<T> to, PhiloxKey key, float deviation, int64_t first, int64_t row_step, int64_t rows,
                            int64_t cols) {
  // A row's first and last counters may have elements outside of the row.
  const int64_t padded_cols = (cols + 2 * normals_at_once - 2) / normals_at_once * normals_at_once;
  for_each_pack<normals_at_once>(rows, padded_cols, [&](int64_t row, int64_t padded_column) {
    const int64_t begin = first + row * row_step;
    const auto counter = static_cast<uint64_t>((begin + padded_column) / normals_at_once);
    const auto words = philox(key, {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0});
    const NormalPair pairs[] = {normal_pair(words[0], words[1]), normal_pair(words[2], words[3])};
    const float normals[] = {pairs[0].first, pairs[0].second, pairs[1].first, pairs[1].second};
    const int64_t column = static_cast<int64_t>(counter) * normals_at_once - begin;
#pragma unroll
    for (int i = 0; i < normals_at_once; ++i)
      if (column + i >= 0 && column + i < cols) *to.at(row, column + i) = rounded_to<T>(deviation * normals[i]);
  });
}

}  // namespace

void cuda_run(const NormalValues& op, Stream stream, std::byte*) {
  with_type(op.to.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream, shape_of_elements(op.to.rows, op.to.cols + normals_at_once, normals_at_once), fill_normal<T>,
           Rows<T>(op.to), op.key, op.deviation, op.first, op.row_step, op.to.rows, op.to.cols);
  });
}

}  // namespace gptrain::cuda
