#include "parallel/low_rank_factors.h"

#include <cmath>
#include <cstdint>

#include "ops/normal_values.h"

namespace gptrain::inline parallel {
namespace {

double product(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Takes off the part along a vector of norm 1.
void remove(std::span<float> from, std::span<const float> vector) {
  const double part = product(from, vector);
  for (size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<float>(static_cast<double>(from[i]) - part * static_cast<double>(vector[i]));
}

// Writes normal numbers `first` and following of the key.
void fill(std::span<float> row, PhiloxKey key, int64_t first) {
  for (size_t i = 0; i < row.size(); ++i) {
    const uint64_t index = static_cast<uint64_t>(first) + i;
    const auto words = philox(key, {static_cast<uint32_t>(index / 4), static_cast<uint32_t>((index / 4) >> 32), 0, 0});
    const size_t pair = index % 4 / 2 * 2;
    const NormalPair normals = normal_pair(words[pair], words[pair + 1]);
    row[i] = index % 2 == 0 ? normals.first : normals.second;
  }
}

}  // namespace

void orthonormalise(const Matrix& rows, PhiloxKey key, std::span<float> scratch, Backend& backend) {
  backend.download(scratch.data(), rows.data, rows.bytes());
  backend.synchronize();
  const auto row = [&](int64_t number) { return scratch.subspan(number * rows.cols, rows.cols); };
  for (int64_t i = 0; i < rows.rows; ++i) {
    const std::span<float> vector = row(i);
    double norm = std::sqrt(product(vector, vector));
    if (norm == 0) {
      fill(vector, key, i * rows.cols);
      for (int64_t before = 0; before < i; ++before) remove(vector, row(before));
      norm = std::sqrt(product(vector, vector));
    }
    for (float& value : vector) value = static_cast<float>(static_cast<double>(value) / norm);
    for (int64_t after = i + 1; after < rows.rows; ++after) remove(row(after), vector);
  }
  backend.upload(rows.data, scratch.data(), rows.bytes());
}

}  // namespace gptrain::parallel
