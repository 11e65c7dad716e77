#include "train/machine_limits.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/timed_event.h"
#include "model/record.h"
#include "ops/footprint.h"

namespace gptrain {
namespace {

// Seconds of the fastest of several runs: long enough that a moment of somebody else's work does not pass for the
// machine's limit. A run before them, which is not counted, sets up primitives and touches memory for the first time.
template <typename Op>
double fastest_seconds(Backend& backend, const Op& op) {
  constexpr int least_runs = 5;
  constexpr double enough_seconds = 0.4;
  const auto scratch = backend.allocate(align_up(footprint(op, backend.target()).scratch_bytes));
  backend.set_scratch(scratch->data(), scratch->bytes());
  backend.run(op);
  backend.synchronize();
  double fastest = std::numeric_limits<double>::infinity();
  double total_seconds = 0;
  for (int run = 0; run < least_runs || total_seconds < enough_seconds; ++run) {
    const double start = steady_seconds();
    backend.run(op);
    backend.synchronize();
    const double elapsed = steady_seconds() - start;
    total_seconds += elapsed;
    fastest = std::min(fastest, elapsed);
  }
  backend.set_scratch(nullptr, 0);
  return fastest;
}

// A product of [rows, inputs] and [inputs, outputs].
struct ProductSize {
  int64_t rows, inputs, outputs;

  constexpr int64_t elements() const { return rows * inputs + outputs * inputs + rows * outputs; }
};
constexpr ProductSize usual_product{2048, 1024, 2048};
constexpr ProductSize large_product{8192, 8192, 8192};
constexpr int64_t copied_rows = 4096;
constexpr int64_t copied_cols = 8192;

constexpr int64_t most_scratch_bytes = int64_t{64} << 20;
static_assert(dtype_bytes(DType::f32) * std::max(large_product.elements(), 2 * copied_rows * copied_cols) +
                  most_scratch_bytes <=
              measuring_bytes);

// FLOP/s of it.
double product_rate(Backend& backend, DType dtype, const ProductSize& size) {
  const auto [rows, inputs, outputs] = size;
  const auto bytes = [&](int64_t r, int64_t c) { return align_up(r * c * dtype_bytes(dtype)); };
  const auto memory = backend.allocate(bytes(rows, inputs) + bytes(outputs, inputs) + bytes(rows, outputs));
  LinearForward product;
  product.x = Matrix(memory->data(), dtype, rows, inputs);
  product.w = Matrix(memory->data() + bytes(rows, inputs), dtype, outputs, inputs);
  product.y = Matrix(memory->data() + bytes(rows, inputs) + bytes(outputs, inputs), dtype, rows, outputs);

  // Values that are neither zero nor denormal: both can change the speed of a product.
  std::vector<float> values(static_cast<size_t>(std::max(rows, outputs) * inputs));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25F + static_cast<float>(i % 97) / 128.0F;
  std::vector<uint16_t> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(),
                 [&](float value) { return dtype == DType::bf16 ? to_bf16(value).bits : to_f16(value).bits; });
  const void* source = dtype == DType::f32 ? static_cast<const void*>(values.data()) : narrow.data();
  backend.upload(product.x.data, source, product.x.bytes());
  backend.upload(product.w.data, source, product.w.bytes());

  return static_cast<double>(footprint(product, backend.target()).executed_flops) / fastest_seconds(backend, product);
}

}  // namespace

double measure_matrix_rate(Backend& backend, DType dtype) {
  const double rate = product_rate(backend, dtype, usual_product);
  // A device that is done with that at once needs more of it to be full.
  constexpr double large_device = 10e12;
  return rate < large_device ? rate : product_rate(backend, dtype, large_product);
}

double measure_copy_rate(Backend& backend) {
  constexpr int64_t rows = copied_rows;
  constexpr int64_t cols = copied_cols;
  const int64_t bytes = rows * cols * dtype_bytes(DType::f32);
  const auto memory = backend.allocate(2 * bytes);
  const Cast copy{.from = Matrix(memory->data(), DType::f32, rows, cols),
                  .to = Matrix(memory->data() + bytes, DType::f32, rows, cols)};
  // Memory that was never written to is one page of zeros, which is read from a cache.
  const std::vector<float> row(cols, 0.25F);
  for (int64_t i = 0; i < rows; ++i) backend.upload(copy.from.row_range(i, 1).data, row.data(), bytes / rows);
  return static_cast<double>(footprint(copy, backend.target()).bytes_moved) / fastest_seconds(backend, copy);
}

}  // namespace gptrain
