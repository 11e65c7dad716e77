#include "planner/measure_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "base/philox.h"
#include "model/record.h"
#include "ops/footprint.h"

namespace gptrain::inline planner {
namespace {

// Allocates device memory with random numbers of mean 0 in the dtype, since speed depends on the operands' values.
std::unique_ptr<DeviceMemory> random_memory(Backend& backend, DType dtype, int64_t count) {
  constexpr int64_t period = 262'139;  // numbers until the sequence repeats; prime, so that no size divides it
  std::vector<float> values(std::min(count, period));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 2 * uniform_open_closed(philox({}, {static_cast<uint32_t>(i)})[0]) - 1;
  std::vector<uint16_t> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), [](float value) { return to_bf16(value).bits; });
  const void* const source = dtype == DType::f32 ? static_cast<const void*>(values.data()) : narrow.data();
  const int64_t width = dtype_bytes(dtype);
  auto memory = backend.allocate(count * width);
  for (int64_t first = 0; first < count; first += period)
    backend.upload(memory->data() + first * width, source, std::min(period, count - first) * width);
  return memory;
}

// One op of one size, which is run repeatedly.
struct Probe {
  std::string key;
  std::vector<double> sizes;
  double flops = 0;
  int64_t scratch_bytes = 0;
  std::function<void()> run_once = {};
  std::vector<double> samples = {};  // seconds per run
};

template <typename Op>
Probe probe_of(Backend& backend, DType dtype, std::vector<double> sizes, const Op& op) {
  const Footprint cost = footprint(op, backend.target());
  return {.key = op_key(Op::name, dtype, {}),
          .sizes = std::move(sizes),
          .flops = static_cast<double>(cost.executed_flops),
          .scratch_bytes = cost.scratch_bytes,
          .run_once = [&backend, op] { backend.run(op); }};
}

double seconds_of_probe(Backend& backend, const Probe& probe, int runs) {
  const double start = steady_seconds();
  for (int i = 0; i < runs; ++i) probe.run_once();
  backend.synchronize();
  return (steady_seconds() - start) / runs;
}

// Runs the op twice, so that later runs need no setup.
void begin_with(Backend& backend, const Probe& probe) {
  backend.set_choosing(true);  // the first run selects the fastest algorithm of a product
  probe.run_once();
  backend.set_choosing(false);
  probe.run_once();
  backend.synchronize();
}

// Measures all probes in turn, round after round, so that a disturbance on the machine affects few samples of each
// probe.
void measure_in_turns(Backend& backend, std::vector<Probe>& probes, const MeasuringTime& time, MeasuredOps& ops) {
  // Takes several short samples at a time: if another process takes turns with this one, most samples lie within a
  // turn.
  constexpr double sample_seconds = 3e-4;
  constexpr int samples_each = 4;
  constexpr double long_sample_seconds = 2e-3;
  constexpr size_t most_rounds = 100;
  int64_t scratch_bytes = 0;
  for (const Probe& probe : probes) scratch_bytes = std::max(scratch_bytes, probe.scratch_bytes);
  const auto scratch = backend.allocate(align_up(scratch_bytes));
  backend.set_scratch(scratch->data(), scratch->bytes());
  const double start = steady_seconds();
  double round_seconds = 0;
  for (size_t round = 0; round < most_rounds; ++round) {
    const double before = steady_seconds();
    if (round > 0 && before - start + round_seconds > time.seconds) break;
    for (Probe& probe : probes) {
      if (round == 0) begin_with(backend, probe);
      const double usual = round == 0 ? seconds_of_probe(backend, probe, 1) : quick_quarter(probe.samples);
      const int runs = static_cast<int>(std::clamp(std::ceil(sample_seconds / usual), 1.0, 1000.0));
      for (int i = 0; i < (usual < long_sample_seconds ? samples_each : 1); ++i)
        probe.samples.push_back(seconds_of_probe(backend, probe, runs));
      if (time.tick) time.tick();
    }
    round_seconds = steady_seconds() - before;
  }
  backend.set_scratch(nullptr, 0);
  std::map<std::string, std::vector<std::vector<double>>> rows;
  for (const Probe& probe : probes) {
    std::vector<double>& row = rows[probe.key].emplace_back(probe.sizes);
    row.push_back(probe.flops / quick_quarter(probe.samples));
  }
  for (const auto& [key, of_key] : rows) ops.tables.insert_or_assign(key, RateTable(RateTable::Kind::rate, of_key));
}

// Returns the sides of the products: the finest of the grids below of which one round takes less than `round_seconds`.
std::vector<int64_t> product_sides(Backend& backend, DType dtype, double round_seconds) {
  const bool on_gpu = backend.target().kind == Target::Kind::gpu;
  const std::vector<std::vector<int64_t>> all =
      on_gpu ? std::vector<std::vector<int64_t>>{{64, 256, 1024, 2048, 4096, 8192}, {64, 256, 1024, 4096}, {64, 256}}
             : std::vector<std::vector<int64_t>>{{64, 160, 448, 1280}, {64, 160, 448}, {64, 256}, {64, 128}};
  const double rate = usual_rate(backend, dtype);
  for (const std::vector<int64_t>& sides : all) {
    double sum = 0;
    for (const int64_t side : sides) sum += static_cast<double>(side);
    const double seconds = 3 * 2 * std::pow(sum, 3) / rate + 3 * 2e-3 * std::pow(sides.size(), 3);
    if (seconds < round_seconds) return sides;
  }
  return all.back();
}

// Adds attention forward and backward for one sequence, with so many heads that heads times tokens is about `rows`.
void add_attention(Backend& backend, DType dtype, int64_t length, int64_t head_size, int64_t rows, std::byte* memory,
                   std::vector<Probe>& probes) {
  const int64_t heads = std::max<int64_t>(rows / length, 1);
  const int64_t bytes = align_up(length * heads * head_size * dtype_bytes(dtype));
  const auto matrix = [&](int64_t i) { return Matrix(memory + i * bytes, dtype, length, heads * head_size); };
  AttentionForward forward{.batch = 1,
                           .sequence_length = length,
                           .num_heads = heads,
                           .num_kv_heads = heads,
                           .head_size = head_size,
                           .scale = 1 / std::sqrt(static_cast<double>(head_size)),
                           .mask = {},
                           .dropout = {},
                           .q = matrix(0),
                           .k = matrix(1),
                           .v = matrix(2),
                           .o = matrix(3),
                           .lse = Matrix(memory + 8 * bytes, DType::f32, heads, length)};
  AttentionBackward backward{.batch = 1,
                             .sequence_length = length,
                             .num_heads = heads,
                             .num_kv_heads = heads,
                             .head_size = head_size,
                             .scale = forward.scale,
                             .mask = {},
                             .dropout = {},
                             .q = forward.q,
                             .k = forward.k,
                             .v = forward.v,
                             .o = forward.o,
                             .lse = forward.lse,
                             .d_o = matrix(4),
                             .dq = matrix(5),
                             .dk = matrix(6),
                             .dv = matrix(7)};
  const std::vector<double> sizes = {static_cast<double>(length), static_cast<double>(head_size)};
  probes.push_back(probe_of(backend, dtype, sizes, forward));
  probes.push_back(probe_of(backend, dtype, sizes, backward));
}

}  // namespace

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

double quick_quarter(std::vector<double> samples) {
  const auto quarter = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 4);
  std::nth_element(samples.begin(), quarter, samples.end());
  return *quarter;
}

double usual_rate(Backend& backend, DType dtype) {
  constexpr int64_t side = 256;
  const auto memory = random_memory(backend, dtype, 3 * side * side);
  const auto matrix = [&](int64_t i) {
    return Matrix(memory->data() + i * side * side * dtype_bytes(dtype), dtype, side, side);
  };
  std::vector<Probe> probes = {
      probe_of(backend, dtype, {1, 1, 1}, LinearForward{.x = matrix(0), .w = matrix(1), .bias = {}, .y = matrix(2)})};
  MeasuredOps ops;
  measure_in_turns(backend, probes, {.seconds = 0.01}, ops);
  return ops.tables.begin()->second.at({1, 1, 1});
}

void measure_products(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops) {
  constexpr double rounds = 8;
  const std::vector<int64_t> sides = product_sides(backend, dtype, time.seconds / rounds);
  const int64_t most = sides.back() * sides.back();
  const auto a = random_memory(backend, dtype, most), b = random_memory(backend, dtype, most);
  const auto c = backend.allocate(most * dtype_bytes(DType::f32));
  std::vector<Probe> probes;
  for (const int64_t m : sides) {
    for (const int64_t n : sides) {
      for (const int64_t k : sides) {
        const std::vector<double> sizes = {static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)};
        const auto matrix = [dtype](const std::unique_ptr<DeviceMemory>& memory, int64_t rows, int64_t cols) {
          return Matrix(memory->data(), dtype, rows, cols);
        };
        probes.push_back(
            probe_of(backend, dtype, sizes,
                     LinearForward{.x = matrix(a, m, k), .w = matrix(b, n, k), .bias = {}, .y = matrix(c, m, n)}));
        probes.push_back(
            probe_of(backend, dtype, sizes,
                     LinearBackwardInput{.dy = matrix(a, m, k), .w = matrix(b, k, n), .dx = matrix(c, m, n)}));
        probes.push_back(probe_of(backend, dtype, sizes,
                                  LinearBackwardWeight{.x = matrix(a, k, n),
                                                       .dy = matrix(b, k, m),
                                                       .dw = Matrix(c->data(), DType::f32, m, n),
                                                       .d_bias = {},
                                                       .accumulate = false}));
      }
    }
  }
  measure_in_turns(backend, probes, time, ops);
}

void measure_grouped_products(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops) {
  constexpr int64_t experts = 8;
  constexpr std::array<int64_t, 3> rows_of_expert = {8, 64, 256};
  constexpr std::array<int64_t, 2> sides = {128, 512};
  constexpr int64_t most_rows = experts * rows_of_expert.back(), most_side = sides.back();
  const auto a = random_memory(backend, dtype, most_rows * most_side);
  const auto b = random_memory(backend, dtype, std::max(most_rows, experts * most_side) * most_side);
  const auto c = backend.allocate(std::max(most_rows, experts * most_side) * most_side * dtype_bytes(DType::f32));
  const auto offsets = backend.allocate(align_up(static_cast<int64_t>(rows_of_expert.size()) * 256));
  std::vector<Probe> probes;
  const auto add = [&](const auto& op) {
    const ProductShape shape = footprint(op, backend.target()).products;
    probes.push_back(probe_of(backend, dtype, product_sizes(shape), op));
  };
  for (size_t i = 0; i < rows_of_expert.size(); ++i) {
    std::array<int32_t, experts + 1> firsts{};
    for (size_t expert = 0; expert <= experts; ++expert)
      firsts[expert] = static_cast<int32_t>(static_cast<int64_t>(expert) * rows_of_expert[i]);
    const Matrix starts(offsets->data() + i * 256, DType::i32, 1, experts + 1);
    backend.upload(starts.data, firsts.data(), starts.bytes());
    const int64_t rows = firsts.back();
    for (const int64_t n : sides) {
      for (const int64_t k : sides) {
        const Matrix x(a->data(), dtype, rows, k), w(b->data(), dtype, experts * n, k);
        add(GroupedLinearForward{.x = x, .w = w, .offsets = starts, .y = Matrix(c->data(), dtype, rows, n)});
        add(GroupedLinearBackwardInput{.dy = x,
                                       .w = Matrix(b->data(), dtype, experts * k, n),
                                       .offsets = starts,
                                       .dx = Matrix(c->data(), dtype, rows, n)});
        add(GroupedLinearBackwardWeight{.x = x,
                                        .dy = Matrix(b->data(), dtype, rows, n),
                                        .offsets = starts,
                                        .dw = Matrix(c->data(), DType::f32, experts * n, k),
                                        .accumulate = false});
      }
    }
  }
  measure_in_turns(backend, probes, time, ops);
}

void measure_attention(Backend& backend, DType dtype, const MeasuringTime& time, MeasuredOps& ops) {
  const bool on_gpu = backend.target().kind == Target::Kind::gpu;
  const int64_t rows = on_gpu ? 65536 : 2048;  // heads times tokens: enough work for all threads
  std::vector<int64_t> lengths = {64, 256, 1024};
  if (on_gpu) lengths.push_back(4096);
  constexpr int64_t largest_head = 128;
  const int64_t all_rows = std::max(rows, lengths.back());
  // Holds eight matrices and the log-sum-exps.
  const auto memory = random_memory(backend, dtype, 9 * all_rows * largest_head + 9 * 256);
  std::vector<Probe> probes;
  for (const int64_t length : lengths)
    for (const int64_t head_size : {int64_t{32}, int64_t{64}, largest_head})
      add_attention(backend, dtype, length, head_size, rows, memory->data(), probes);
  measure_in_turns(backend, probes, time, ops);
}

}  // namespace gptrain::planner
