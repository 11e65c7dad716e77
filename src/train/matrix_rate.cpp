#include "train/matrix_rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "model/record.h"
#include "ops/footprint.h"

namespace gptrain {

double measure_matrix_rate(Backend& backend, DType dtype) {
  constexpr int64_t rows = 2048;
  constexpr int64_t inputs = 1024;
  constexpr int64_t outputs = 2048;
  // Long enough that a moment of somebody else's work does not pass for the machine's limit.
  constexpr int64_t most_repeats = 1000;
  constexpr double enough_seconds = 0.4;
  const auto bytes = [&](int64_t r, int64_t c) { return align_up(r * c * dtype_bytes(dtype)); };
  const auto memory = backend.allocate(bytes(rows, inputs) + bytes(outputs, inputs) + bytes(rows, outputs));
  LinearForward product;
  product.x = Matrix(memory->data(), dtype, rows, inputs);
  product.w = Matrix(memory->data() + bytes(rows, inputs), dtype, outputs, inputs);
  product.y = Matrix(memory->data() + bytes(rows, inputs) + bytes(outputs, inputs), dtype, rows, outputs);

  // Values that are neither zero nor denormal: both can change the speed of a product.
  std::vector<float> values(static_cast<size_t>(std::max(rows, outputs) * inputs));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25F + static_cast<float>(i % 97) / 128.0F;
  std::vector<bf16> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), to_bf16);
  const void* source = dtype == DType::f32 ? static_cast<const void*>(values.data()) : narrow.data();
  backend.upload(product.x.data, source, product.x.bytes());
  backend.upload(product.w.data, source, product.w.bytes());

  const Footprint cost = footprint(product, backend.target());
  const auto scratch = backend.allocate(align_up(cost.scratch_bytes));
  backend.set_scratch(scratch->data(), scratch->bytes());
  double best = 0;
  double total_seconds = 0;
  for (int64_t i = 0; i < most_repeats && total_seconds < enough_seconds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    backend.run(product);
    backend.synchronize();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    total_seconds += elapsed.count();
    best = std::max(best, static_cast<double>(cost.executed_flops) / elapsed.count());
  }
  backend.set_scratch(nullptr, 0);
  return best;
}

}  // namespace gptrain
