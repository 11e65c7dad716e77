#include "planner/measure_machine.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <numeric>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/event.h"
#include "base/output_file.h"
#include "comm/bench.h"
#include "comm/lane.h"
#include "model/record.h"
#include "ops/footprint.h"
#include "planner/measure_ops.h"
#include "step/machine_limits.h"

namespace gptrain::inline planner {
namespace {

namespace fs = std::filesystem;

double seconds_of(const std::function<void()>& work) {
  const double start = steady_seconds();
  work();
  return steady_seconds() - start;
}

std::unique_ptr<Communicator> group_of_all(World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group(ranks);
}

// Divides a total time among consecutive measurements. Each gets its part of the time that is left, so that the excess
// of one is taken from the next ones.
class TimeParts {
 public:
  TimeParts(double seconds, double all_parts) : end_(steady_seconds() + seconds), parts_left_(all_parts) {}

  double next(double part) {
    const double seconds = std::max(0.0, end_ - steady_seconds()) * part / parts_left_;
    parts_left_ = std::max(parts_left_ - part, part * 1e-3);
    return seconds;
  }

 private:
  double end_, parts_left_;
};

// Measures the ops of one rank while the other ranks of the share do the same.
MeasuredOps measure_ops(Backend& backend, Communicator& others, double seconds, const std::function<void()>& tick) {
  constexpr double of_products = 0.45, of_grouped = 0.05, of_attention = 0.1, of_steps = 0.4;
  MeasuredOps ops;
  TimeParts time(seconds, 1);
  // Products in bf16 are faster than in f32, so that their measurements get less time.
  for (const auto& [dtype, part] : {std::pair{DType::f32, 0.6}, std::pair{DType::bf16, 0.4}}) {
    others.barrier();
    measure_products(backend, dtype, {time.next(of_products * part), tick}, ops);
    others.barrier();
    // Products of experts are measured on CPUs only.
    if (backend.target().kind == Target::Kind::cpu) {
      measure_grouped_products(backend, dtype, {time.next(of_grouped * part), tick}, ops);
      others.barrier();
    }
    measure_attention(backend, dtype, {time.next(of_attention * part), tick}, ops);
    others.barrier();
    measure_steps(backend, dtype, {time.next(of_steps * part), tick}, ops);
  }
  return ops;
}

MeasuredShare measure_share(const MeasuringOptions& options, int64_t ranks, int64_t threads, double seconds,
                            const std::function<void()>& tick) {
  MeasuredShare share{.ranks = ranks, .threads = threads};
  run_local_ranks(static_cast<int>(ranks), [&](World& world) {
    const auto all = group_of_all(world);
    const auto backend = options.on_gpu ? make_cuda_backend(0) : make_cpu_backend(static_cast<int>(threads));
    const bool is_first = world.rank() == 0;
    MeasuredOps ops = measure_ops(*backend, *all, seconds, is_first ? tick : std::function<void()>());
    if (!is_first) return;
    share.stretch = std::max(1.0, ops.stretch());
    share.between_ops_seconds = ops.between_ops_seconds;
    share.ops = std::move(ops.tables);
    share.in_steps = std::move(ops.in_steps);
  });
  return share;
}

double host_copy_rate(Backend& backend) {
  constexpr int64_t bytes = int64_t{32} << 20;
  const std::vector<std::byte> host(bytes, std::byte{1});
  const auto device = backend.allocate(bytes);
  std::vector<double> samples;
  for (int i = 0; i < 6; ++i) {
    samples.push_back(seconds_of([&] {
      backend.upload(device->data(), host.data(), bytes);
      backend.synchronize();
    }));
  }
  samples.erase(samples.begin());  // the first run touches the memory for the first time
  return static_cast<double>(bytes) / median(samples);
}

double storage_rate(const fs::path& folder) {
  constexpr size_t bytes = size_t{32} << 20;
  const fs::path path = folder / fmt::format(".gptrain-bench-{}", getpid());
  const std::string data(bytes, 'x');
  const struct Remover {
    const fs::path& path;
    ~Remover() {
      std::error_code ignored;
      fs::remove(path, ignored);
    }
  } remover{path};
  OutputFile file(path, OutputFile::Mode::overwrite);
  return static_cast<double>(bytes) / seconds_of([&] {
           file.write(data);
           file.sync();
         });
}

// Returns the share of its speed that a rank's ops lose while one of its lanes works. Runs products and all-reduces of
// equal length, first one after the other, then side by side.
double slow_down_beside_traffic(int64_t cores, const std::function<void()>& tick) {
  constexpr int num_ranks = 2;
  constexpr int rounds = 5;
  constexpr int64_t side = 256, elements = int64_t{1} << 18;
  constexpr double part_seconds = 0.01;
  std::vector<double> slow_downs;
  run_local_ranks(num_ranks, [&](World& world) {
    const auto all = group_of_all(world), of_lane = group_of_all(world);
    const auto backend = make_cpu_backend(static_cast<int>(std::max<int64_t>(1, cores / num_ranks)));
    std::vector<float> factors(2 * side * side, 0.5F), product(side * side), summed(elements);
    const LinearForward op{.x = Matrix(factors.data(), DType::f32, side, side),
                           .w = Matrix(factors.data() + side * side, DType::f32, side, side),
                           .bias = {},
                           .y = Matrix(product.data(), DType::f32, side, side)};
    const auto scratch = backend->allocate(align_up(footprint(op, backend->target()).scratch_bytes));
    backend->set_scratch(scratch->data(), scratch->bytes());
    Lane lane("bench", {.threaded = true, .groups = {of_lane.get()}});
    const auto compute = [&](int times) {
      for (int i = 0; i < times; ++i) backend->run(op);
    };
    const auto issue = [&] { lane.all_reduce(of_lane.get(), summed.data(), elements, DType::f32); };
    const auto communicate = [&](int times) {
      for (int i = 0; i < times; ++i) issue();
      lane.wait_all();
    };
    // All ranks run the same number of times: as often as the slowest one can in part_seconds.
    const auto times_of = [&](const std::function<void(int)>& work) {
      work(1);
      double seconds = seconds_of([&] { work(4); }) / 4;
      all->all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
      return std::clamp(static_cast<int>(part_seconds / seconds), 1, 40);
    };
    const int ops = times_of(compute), sums = times_of(communicate);
    for (int round = 0; round < rounds; ++round) {
      all->barrier();
      const double alone = seconds_of([&] { compute(ops); });
      all->barrier();
      const double traffic = seconds_of([&] { communicate(sums); });
      all->barrier();
      const double both = seconds_of([&] {
        for (int i = 0; i < sums; ++i) issue();
        compute(ops);
        lane.wait_all();
      });
      if (world.rank() == 0) slow_downs.push_back((both - std::max(alone, traffic)) / std::min(alone, traffic));
      if (world.rank() == 0 && tick) tick();
    }
  });
  constexpr double most = 0.95;  // an op never stops completely
  return std::clamp(median(slow_downs), 0.0, most);
}

// Returns how many seconds longer a collective takes on a lane than on the calling thread: handing it over wakes two
// threads.
double hand_over_seconds(World& world, double seconds) {
  constexpr size_t most_samples = 200;
  constexpr double least = 1e-9;  // figures of a table must be above 0
  const auto of_lane = group_of_all(world);
  float summed = 0;
  Lane lane("bench", {.threaded = true, .groups = {of_lane.get()}});
  const std::function<void()> hand_over = [&] {
    lane.all_reduce(of_lane.get(), &summed, 1, DType::f32);
    lane.wait_all();
  };
  const std::function<void()> run = [&] { of_lane->all_reduce(&summed, 1, DType::f32, ReduceOp::sum); };
  // All ranks take the same number of samples: as many as rank 0 has time for.
  const double one = seconds_of([&] {
    hand_over();
    run();
  });
  auto samples = static_cast<float>(std::clamp(seconds / 2 / one, 5.0, static_cast<double>(most_samples)));
  of_lane->broadcast(&samples, 1, DType::f32, 0);
  const auto median_of = [&](const std::function<void()>& work) {
    std::vector<double> all;
    for (int i = 0; i < static_cast<int>(samples); ++i) all.push_back(seconds_of(work));
    return median(all);
  };
  double longer = median_of(hand_over) - median_of(run);
  of_lane->all_reduce(&longer, 1, DType::f64, ReduceOp::max);
  return std::max(longer, least);
}

}  // namespace

RateTables measure_links(World& world, double seconds, const std::function<void()>& tick) {
  constexpr int most_rounds = 3;
  constexpr double rows_of_a_round = 6 * 8;
  const auto all = group_of_all(world);
  world.activity().set_phase("bench");
  const auto backend = make_cpu_backend(1);
  std::map<std::string, std::map<double, std::vector<double>>> samples;
  const double start = steady_seconds();
  for (int round = 0; round < most_rounds; ++round) {
    // All ranks stop when the slowest one has no time for another round.
    const double taken = steady_seconds() - start;
    double too_long = round > 0 && taken * (round + 1) / round > seconds ? 1 : 0;
    all->all_reduce(&too_long, 1, DType::f64, ReduceOp::max);
    if (too_long > 0) break;
    // Checking the results of the collectives takes half of the time.
    const BenchOptions options{.max_bytes = int64_t{16} << 20, .seconds = seconds / most_rounds / rows_of_a_round / 2};
    bench_collectives({*all, *all, *backend}, options, [&](const BenchRow& row) {
      samples[row.operation][static_cast<double>(row.bytes)].push_back(row.seconds);
      if (tick) tick();
    });
  }
  RateTables tables;
  for (const auto& [operation, by_bytes] : samples) {
    std::vector<std::vector<double>> rows;
    for (const auto& [bytes, of_size] : by_bytes) rows.push_back({bytes, median(of_size)});
    tables.emplace(operation, RateTable(RateTable::Kind::seconds, rows));
  }
  tables.emplace(hand_over_key, RateTable(RateTable::Kind::seconds, {{1, hand_over_seconds(world, 0.1 * seconds)}}));
  return tables;
}

MeasuredMachine measure_machine(const MeasuringOptions& options) {
  const double start = steady_seconds();
  const std::function<void()> tick = [&] {
    if (options.progress) options.progress(steady_seconds() - start);
  };
  MeasuredMachine machine{.name = "this-machine", .is_cpu = !options.on_gpu};
  machine.storage_bytes_per_second = storage_rate(options.folder);
  {
    const auto backend = options.on_gpu ? make_cuda_backend(0) : make_cpu_backend(0);
    machine.cores = options.on_gpu ? 1 : backend->target().num_threads;
    machine.compute_capability = backend->target().compute_capability;
    machine.memory_bytes = static_cast<double>(backend->target().memory_bytes);
    machine.bytes_per_second = measure_copy_rate(*backend);
    machine.host_bytes_per_second = host_copy_rate(*backend);
    tick();
  }
  if (!options.on_gpu) machine.slow_down_beside_traffic = slow_down_beside_traffic(machine.cores, tick);
  std::vector<int64_t> shares = {1};
  while (2 * shares.back() <= machine.cores) shares.push_back(2 * shares.back());
  const std::vector<int64_t> groups = options.on_gpu ? std::vector<int64_t>{} : std::vector<int64_t>{2, 4};
  constexpr double of_links = 0.1;
  const double of_shares = 1 - (groups.empty() ? 0 : of_links);
  TimeParts time(options.seconds - (steady_seconds() - start), 1);
  // Groups may have more ranks than there are cores; their threads then take turns.
  for (const int64_t ranks : groups) {
    const double seconds = time.next(of_links / static_cast<double>(groups.size()));
    run_local_ranks(static_cast<int>(ranks), [&](World& world) {
      const bool is_first = world.rank() == 0;
      RateTables tables = measure_links(world, seconds, is_first ? tick : std::function<void()>());
      if (is_first) machine.links[LinkWay::threads].emplace(ranks, std::move(tables));
    });
  }
  for (const int64_t ranks : shares) {
    const double seconds = time.next(of_shares / static_cast<double>(shares.size()));
    machine.shares.push_back(measure_share(options, ranks, machine.cores / ranks, seconds, tick));
  }
  machine.f32_flops = best_product_rate(machine, DType::f32);
  machine.half_flops = best_product_rate(machine, DType::bf16);
  return machine;
}

}  // namespace gptrain::planner
