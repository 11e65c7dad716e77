#include "step/machine_limits.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/event.h"
#include "base/philox.h"
#include "model/record.h"
#include "ops/footprint.h"

namespace gptrain::inline step {
namespace {

// Returns the seconds of one call of `once`: the lower quartile of several samples. Other work on the machine only
// lengthens samples, so the quartile is steadier than the median; the minimum would catch a clock that is still
// boosted. Each sample makes enough calls for the wait at its end to be short in comparison. Two calls before, which
// are not counted, set up primitives and touch memory for the first time. Every run of gptrain waits for this, so it is
// short.
double usual_seconds(Backend& backend, const std::function<void()>& once) {
  constexpr size_t least_samples = 5;
  constexpr double enough_seconds = 0.01;
  constexpr double sample_seconds = 1e-3;
  constexpr double most_runs = 1000;
  const auto seconds_of = [&](int runs) {
    const double start = steady_seconds();
    for (int run = 0; run < runs; ++run) once();
    backend.synchronize();
    return steady_seconds() - start;
  };
  backend.set_choosing(true);  // lets the backend choose the product's fastest algorithm
  once();
  backend.set_choosing(false);
  seconds_of(1);
  const int runs = static_cast<int>(std::clamp(std::ceil(sample_seconds / seconds_of(1)), 1.0, most_runs));
  std::vector<double> samples;
  for (double total = 0; samples.size() < least_samples || total < enough_seconds; total += samples.back())
    samples.push_back(seconds_of(runs));
  const auto quartile = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 4);
  std::nth_element(samples.begin(), quartile, samples.end());
  return *quartile / runs;
}

// Gives the backend the scratch memory that `op` needs, for the lifetime of this object.
template <typename Op>
class ScratchOf {
 public:
  ScratchOf(Backend& backend, const Op& op)
      : backend_(backend), memory_(backend.allocate(align_up(footprint(op, backend.target()).scratch_bytes))) {
    backend.set_scratch(memory_->data(), memory_->bytes());
  }
  ~ScratchOf() { backend_.set_scratch(nullptr, 0); }
  ScratchOf(const ScratchOf&) = delete;
  ScratchOf& operator=(const ScratchOf&) = delete;

 private:
  Backend& backend_;
  std::unique_ptr<DeviceMemory> memory_;
};

// Returns random values, uniform in (-1, 1]. The values of a product's operands change its speed: the fewer bits change
// from one to the next, the less power a device draws and the higher its clock. The values repeat with a prime period,
// so that no two rows of a matrix are equal.
std::vector<float> random_values(int64_t count) {
  constexpr int64_t period = 65'521;
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    values[index] = i < period ? 2 * uniform_open_closed(philox({}, {static_cast<uint32_t>(i)})[0]) - 1
                               : values[index - static_cast<size_t>(period)];
  }
  return values;
}

// A product of [rows, inputs] and [inputs, outputs].
struct ProductSize {
  int64_t rows, inputs, outputs;

  // Elements of all operands, with the weights twice: plain and packed.
  constexpr int64_t elements() const { return rows * inputs + 2 * outputs * inputs + rows * outputs; }
};
constexpr ProductSize small_product{512, 512, 512};
constexpr ProductSize usual_product{512, 1024, 1024};
constexpr ProductSize large_product{8192, 8192, 8192};
constexpr int64_t copied_rows = 4096;
constexpr int64_t copied_cols = 8192;

constexpr int64_t most_scratch_bytes = int64_t{64} << 20;
static_assert(dtype_bytes(DType::f32) * std::max(large_product.elements(), 2 * copied_rows * copied_cols) +
                  most_scratch_bytes <=
              measuring_bytes);

// Returns the product's FLOP/s with plain or packed weights, whichever are faster.
double product_rate(Backend& backend, DType dtype, const ProductSize& size) {
  const auto [rows, inputs, outputs] = size;
  const auto bytes = [&](int64_t r, int64_t c) { return align_up(r * c * dtype_bytes(dtype)); };
  const auto memory = backend.allocate(bytes(rows, inputs) + bytes(outputs, inputs) + bytes(rows, outputs));
  LinearForward product;
  product.x = Matrix(memory->data(), dtype, rows, inputs);
  product.w = Matrix(memory->data() + bytes(rows, inputs), dtype, outputs, inputs);
  product.y = Matrix(memory->data() + bytes(rows, inputs) + bytes(outputs, inputs), dtype, rows, outputs);

  const std::vector<float> values = random_values(std::max(rows, outputs) * inputs);
  std::vector<uint16_t> narrow(dtype == DType::f32 ? 0 : values.size());
  std::transform(values.begin(), values.begin() + std::ssize(narrow), narrow.begin(),
                 [&](float value) { return dtype == DType::bf16 ? to_bf16(value).bits : to_f16(value).bits; });
  const void* source = dtype == DType::f32 ? static_cast<const void*>(values.data()) : narrow.data();
  backend.upload(product.x.data, source, product.x.bytes());
  backend.upload(product.w.data, source, product.w.bytes());

  const ScratchOf scratch(backend, product);
  double seconds = usual_seconds(backend, [&] { backend.run(product); });
  const auto packed = backend.pack(product, [&](int64_t bytes_of_w) { return backend.allocate(align_up(bytes_of_w)); });
  if (packed != nullptr) seconds = std::min(seconds, usual_seconds(backend, [&] { packed->run(); }));
  return static_cast<double>(footprint(product, backend.target()).executed_flops) / seconds;
}

}  // namespace

double measure_matrix_rate(Backend& backend, DType dtype) {
  // In f32, few threads are as fast in a smaller product; in bf16 its weights would fit a cache.
  constexpr int few_threads = 4;
  const Target& target = backend.target();
  const bool small = dtype == DType::f32 && target.kind == Target::Kind::cpu && target.num_threads <= few_threads;
  const double rate = product_rate(backend, dtype, small ? small_product : usual_product);
  // The usual product does not fill a fast device, so measure a larger one there.
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
  // Write the source first: pages never written to all map to one page of zeros, which stays in a cache.
  const std::vector<float> row(cols, 0.25F);
  for (int64_t i = 0; i < rows; ++i) backend.upload(copy.from.row_range(i, 1).data, row.data(), bytes / rows);
  const ScratchOf scratch(backend, copy);
  return static_cast<double>(footprint(copy, backend.target()).bytes_moved) /
         usual_seconds(backend, [&] { backend.run(copy); });
}

MachineLimits measure_limits(Backend& backend, DType compute, bool measure_copies) {
  return {.compute = compute,
          .matrix_flops = measure_matrix_rate(backend, compute),
          .bytes_per_second = measure_copies ? measure_copy_rate(backend) : 0};
}

}  // namespace gptrain::step
