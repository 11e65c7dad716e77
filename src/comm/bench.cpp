#include "comm/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/enum_array.h"
#include "base/error.h"

namespace gptrain::inline comm {
namespace {

constexpr int64_t smallest_bytes = 1024;
constexpr int64_t growth = 4;
constexpr double max_calls = 100'000;

// Test data: small integers, whose sums are exact in f32 for any number of ranks on a machine.
int value(int rank, int64_t element) { return static_cast<int>((element * 5 + rank * 3) % 13) - 4; }

void store_number(void* data, int64_t element, int number, DType dtype) {
  if (dtype == DType::bf16) {
    static_cast<bf16*>(data)[element] = to_bf16(static_cast<float>(number));
  } else {
    static_cast<float*>(data)[element] = static_cast<float>(number);
  }
}

// An operation to measure, with buffers of `count` elements per piece.
struct Subject {
  const char* name;
  bool whole;  // the reported size counts all ranks' pieces together
  double (*bus_factor)(double num_ranks);
  void (*run)(Communicator& group, void* in, void* out, int64_t count, DType dtype);
  // Element i of the result on `rank`.
  int (*expected)(int rank, int size, int64_t count, int64_t i);
  bool in_place;  // the result is in `in`
  bool many_out;  // the result has one piece per rank
};

int sum_of(int size, int64_t element) {
  int sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += value(rank, element);
  return sum;
}

double shared(double n) { return (n - 1) / n; }
double single(double) { return 1; }

const Subject subjects[] = {
    {"all_reduce", false, [](double n) { return 2 * (n - 1) / n; },
     [](Communicator& group, void* in, void*, int64_t count, DType dtype) {
       group.all_reduce(in, count, dtype, ReduceOp::sum);
     },
     [](int, int size, int64_t, int64_t i) { return sum_of(size, i); }, true, false},
    {"reduce_scatter", true, shared,
     [](Communicator& group, void* in, void* out, int64_t count, DType dtype) {
       group.reduce_scatter(in, out, count, dtype, ReduceOp::sum);
     },
     [](int rank, int size, int64_t count, int64_t i) { return sum_of(size, rank * count + i); }, false, false},
    {"all_gather", true, shared,
     [](Communicator& group, void* in, void* out, int64_t count, DType dtype) {
       group.all_gather(in, out, count, dtype);
     },
     [](int, int, int64_t count, int64_t i) { return value(static_cast<int>(i / count), i % count); }, false, true},
    {"all_to_all", true, shared,
     [](Communicator& group, void* in, void* out, int64_t count, DType dtype) {
       group.all_to_all(in, out, count, dtype);
     },
     [](int rank, int, int64_t count, int64_t i) {
       return value(static_cast<int>(i / count), rank * count + i % count);
     },
     false, true},
    {"broadcast", false, single,
     [](Communicator& group, void* in, void*, int64_t count, DType dtype) {
       group.broadcast(in, count, dtype, group.size() - 1);
     },
     [](int, int size, int64_t, int64_t i) { return value(size - 1, i); }, true, false},
    {"send", false, single,
     [](Communicator& group, void* in, void* out, int64_t count, DType dtype) {
       group.group_start();
       group.send(in, count, dtype, (group.rank() + 1) % group.size());
       group.receive(out, count, dtype, (group.rank() + group.size() - 1) % group.size());
       group.group_end();
     },
     [](int rank, int size, int64_t, int64_t i) { return value((rank + size - 1) % size, i); }, false, false},
};

template <SumAlgorithm algorithm>
constexpr Subject sum_subject = {sum_algorithm_names[algorithm].data(),
                                 false,
                                 [](double n) { return 2 * (n - 1) / n; },
                                 [](Communicator& group, void* in, void* out, int64_t count, DType) {
                                   sum_by(algorithm, group, static_cast<float*>(in), count, static_cast<float*>(out));
                                 },
                                 [](int, int size, int64_t, int64_t i) { return sum_of(size, i); },
                                 true,
                                 false};

const EnumArray<SumAlgorithm, Subject, num_sum_algorithms> sum_subjects = {
    sum_subject<SumAlgorithm::everyone>, sum_subject<SumAlgorithm::manager>, sum_subject<SumAlgorithm::ring>,
    sum_subject<SumAlgorithm::halving_doubling>};

double seconds_of(Communicator& group, int64_t calls, const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) call();
  group.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_result(const Communicator& group, const Subject& subject, const void* result, int64_t count,
                  const BenchOptions& options) {
  const int64_t width = dtype_bytes(options.dtype);
  const int64_t length = subject.many_out ? count * group.size() : count;
  for (int64_t i = 0; i < length; ++i) {
    const int expected = subject.expected(group.rank(), group.size(), count, i);
    std::byte bits[sizeof(float)];
    store_number(bits, 0, expected, options.dtype);
    if (std::memcmp(static_cast<const std::byte*>(result) + i * width, bits, width) != 0)
      throw Error(ExitCode::device, "{} of {} x {} is wrong on rank {}: element {} must be {}", subject.name, count,
                  dtype_name(options.dtype), group.rank(), i, expected);
  }
}

// Device buffers, and the host buffer that they are copied from and to.
struct Buffers {
  std::byte* in;
  std::byte* out;
  std::byte* host;
};

BenchRow bench_one(const BenchGroup& group, const Subject& subject, int64_t bytes, const Buffers& buffers,
                   const BenchOptions& options) {
  const int size = group.host.size();
  const int64_t pieces = subject.whole ? size : 1;
  const int64_t width = dtype_bytes(options.dtype);
  const int64_t count = std::max<int64_t>(bytes / pieces / width, 1);
  for (int64_t i = 0; i < count * pieces; ++i)
    store_number(buffers.host, i, value(group.host.rank(), i), options.dtype);
  group.backend.upload(buffers.in, buffers.host, count * pieces * width);
  group.backend.synchronize();
  const auto call = [&] { subject.run(group.device, buffers.in, buffers.out, count, options.dtype); };
  call();
  group.device.synchronize();
  group.backend.download(buffers.host, subject.in_place ? buffers.in : buffers.out,
                         (subject.many_out ? count * size : count) * width);
  check_result(group.host, subject, buffers.host, count, options);
  // The slowest rank's time decides, so that all measure the same number of calls.
  group.host.barrier();
  double once = seconds_of(group.device, 1, call);
  group.host.all_reduce(&once, 1, DType::f64, ReduceOp::max);
  const auto calls = static_cast<int64_t>(std::ceil(std::clamp(options.seconds / once, 1.0, max_calls)));
  group.host.barrier();
  double seconds = seconds_of(group.device, calls, call) / static_cast<double>(calls);
  group.host.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
  const double all_bytes = static_cast<double>(count * pieces * width);
  return {subject.name,
          count * pieces * width,
          seconds,
          all_bytes / seconds,
          all_bytes / seconds * subject.bus_factor(size),
          0};
}

std::vector<int64_t> sizes(const BenchOptions& options) {
  std::vector<int64_t> sizes;
  for (int64_t size = std::min(smallest_bytes, options.max_bytes); size <= options.max_bytes; size *= growth)
    sizes.push_back(size);
  return sizes;
}

// Measures sends, then the sums by messages of all sizes.
void bench_sums(const BenchGroup& group, const BenchOptions& options, const Buffers& buffers,
                const std::function<void(const BenchRow&)>& on_row) {
  const Subject& send = *std::find_if(std::begin(subjects), std::end(subjects),
                                      [](const Subject& subject) { return std::string_view(subject.name) == "send"; });
  std::vector<BenchRow> sends;
  for (const int64_t size : sizes(options)) {
    sends.push_back(bench_one(group, send, size, buffers, options));
    on_row(sends.back());
  }
  const double latency = sends.front().seconds;
  for (const SumAlgorithm algorithm : options.algorithms) {
    for (const int64_t size : sizes(options)) {
      BenchRow row = bench_one(group, sum_subjects[algorithm], size, buffers, options);
      const SumCost cost = sum_cost(algorithm, group.host.size(), static_cast<double>(row.bytes));
      row.formula_seconds = cost.messages * latency + cost.bytes / sends.back().algorithm_bandwidth;
      on_row(row);
    }
  }
}

}  // namespace

void bench_collectives(const BenchGroup& group, const BenchOptions& options,
                       const std::function<void(const BenchRow&)>& on_row) {
  // The smallest piece is one element.
  const int64_t bytes = std::max(options.max_bytes, group.host.size() * dtype_bytes(options.dtype));
  const auto in = group.backend.allocate(bytes);
  const auto out = group.backend.allocate(bytes * (options.algorithms.empty() ? 1 : group.host.size()));
  const auto host = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
  const Buffers buffers{in->data(), out->data(), host.get()};
  if (!options.algorithms.empty()) return bench_sums(group, options, buffers, on_row);
  for (const Subject& subject : subjects)
    for (const int64_t size : sizes(options)) on_row(bench_one(group, subject, size, buffers, options));
}

}  // namespace gptrain::comm
