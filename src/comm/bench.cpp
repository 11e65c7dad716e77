#include "comm/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace gptrain {
namespace {

constexpr int64_t smallest_bytes = 1024;
constexpr int64_t growth = 4;
constexpr double max_calls = 100'000;

// Small integers, whose sums over any number of ranks that fits a machine are exact in f32.
int value(int rank, int64_t element) { return static_cast<int>((element * 5 + rank * 3) % 13) - 4; }

void store(void* data, int64_t element, int number, DType dtype) {
  if (dtype == DType::bf16) {
    static_cast<bf16*>(data)[element] = to_bf16(static_cast<float>(number));
  } else {
    static_cast<float*>(data)[element] = static_cast<float>(number);
  }
}

// One operation over buffers of `count` elements for each piece.
struct Subject {
  const char* name;
  bool whole;  // the size is that of all ranks' pieces together
  double (*bus_factor)(double num_ranks);
  void (*run)(Communicator& group, void* in, void* out, int64_t count, DType dtype);
  // Element i of the result on `rank`.
  int (*expected)(int rank, int size, int64_t count, int64_t i);
  bool in_place;  // the result is in `in`
  bool many_out;  // the result is one piece of each rank
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

double seconds_of(int64_t calls, const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_result(const Communicator& group, const Subject& subject, const void* result, int64_t count,
                  const BenchOptions& options) {
  const int64_t width = dtype_bytes(options.dtype);
  const int64_t length = subject.many_out ? count * group.size() : count;
  for (int64_t i = 0; i < length; ++i) {
    const int expected = subject.expected(group.rank(), group.size(), count, i);
    std::byte bits[sizeof(float)];
    store(bits, 0, expected, options.dtype);
    if (std::memcmp(static_cast<const std::byte*>(result) + i * width, bits, static_cast<size_t>(width)) != 0)
      throw Error(ExitCode::device, "{} of {} x {} is wrong on rank {}: element {} must be {}", subject.name, count,
                  dtype_name(options.dtype), group.rank(), i, expected);
  }
}

BenchRow bench_one(Communicator& group, const Subject& subject, int64_t bytes, std::byte* in, std::byte* out,
                   const BenchOptions& options) {
  const int64_t pieces = subject.whole ? group.size() : 1;
  const int64_t count = std::max<int64_t>(bytes / pieces / dtype_bytes(options.dtype), 1);
  for (int64_t i = 0; i < count * pieces; ++i) store(in, i, value(group.rank(), i), options.dtype);
  const auto call = [&] { subject.run(group, in, out, count, options.dtype); };
  call();
  check_result(group, subject, subject.in_place ? in : out, count, options);
  // All must measure the same number of calls.
  group.barrier();
  double once = seconds_of(1, call);
  group.all_reduce(&once, 1, DType::f64, ReduceOp::max);
  const auto calls = static_cast<int64_t>(std::ceil(std::clamp(options.seconds / once, 1.0, max_calls)));
  group.barrier();
  double seconds = seconds_of(calls, call) / static_cast<double>(calls);
  group.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
  const double size = static_cast<double>(count * pieces * dtype_bytes(options.dtype));
  return {subject.name, count * pieces * dtype_bytes(options.dtype), seconds, size / seconds,
          size / seconds * subject.bus_factor(group.size())};
}

}  // namespace

void bench_collectives(Communicator& group, const BenchOptions& options,
                       const std::function<void(const BenchRow&)>& on_row) {
  // A piece is at least one element.
  const auto buffer_bytes = static_cast<size_t>(std::max(options.max_bytes, group.size() * dtype_bytes(options.dtype)));
  const auto in = std::make_unique_for_overwrite<std::byte[]>(buffer_bytes);
  const auto out = std::make_unique_for_overwrite<std::byte[]>(buffer_bytes);
  for (const Subject& subject : subjects)
    for (int64_t bytes = std::min(smallest_bytes, options.max_bytes); bytes <= options.max_bytes; bytes *= growth)
      on_row(bench_one(group, subject, bytes, in.get(), out.get(), options));
}

}  // namespace gptrain
