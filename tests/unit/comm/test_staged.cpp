// Collectives through a staging memory of any size, compared with the same ones on whole buffers.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "catch.h"
#include "comm/lane.h"
#include "comm/staged.h"
#include "some_cases.h"
#include "unit/comm/ranks.h"

namespace test_staged {

using namespace gptrain;

namespace {

class PlainMemory final : public DeviceMemory {
 public:
  explicit PlainMemory(int64_t bytes) : DeviceMemory(::operator new(static_cast<size_t>(bytes)), bytes) {}
  ~PlainMemory() override { ::operator delete(data_); }
};

// A device whose addresses are shifted host addresses: host code that touches its memory uses other bytes.
class ShiftedDevice final : public SideQueue {
 public:
  static constexpr int64_t shift = int64_t{1} << 20;

  void mark_ops(int mark) override { last_marked = mark; }
  void follow_ops(int mark) override { last_followed = mark; }
  void mark_work(int mark) override { last_work = mark; }
  void ops_follow(int mark) override { last_awaited = mark; }
  void* handle() const override { return nullptr; }
  void while_waiting(std::function<void()>) override {}
  void await_ops(int) override {}
  void await_work(int) override {}
  void finish_work(int) override {}
  void time_ops(int) override {}
  double seconds_between(int, int) override { return 0; }
  void queue_upload(void* device, const void* host, int64_t bytes) override { upload(device, host, bytes); }
  void queue_download(void* host, const void* device, int64_t bytes) override { download(host, device, bytes); }
  void copy_among_ops(void*, const void*, int64_t) override {}
  void upload(void* device, const void* host, int64_t bytes) override { copy(moved(device, -shift), host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override {
    copy(host, moved(const_cast<void*>(device), -shift), bytes);
  }
  std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) override { return std::make_unique<PlainMemory>(bytes); }

  // Returns the device address for host memory that stands for the device's.
  static void* moved(void* data, int64_t by = shift) {
    return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(data) + by);
  }

  int last_marked = -1, last_followed = -1, last_work = -1, last_awaited = -1;

 private:
  static void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
};

// Returns numbers whose sums round differently in every order.
template <typename T>
std::vector<T> numbers(int rank, int64_t count) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto words = philox({static_cast<uint32_t>(rank), 11}, {static_cast<uint32_t>(i), 0, 0, 0});
    const double value = (static_cast<double>(words[0]) - 0x1p31) * 0x1p-31 / static_cast<double>(1 + words[1] % 1000);
    if constexpr (std::is_same_v<T, bf16>) {
      values.push_back(to_bf16(static_cast<float>(value)));
    } else {
      values.push_back(static_cast<T>(value));
    }
  }
  return values;
}

template <typename T>
constexpr DType dtype_of = std::is_same_v<T, float>    ? DType::f32
                           : std::is_same_v<T, double> ? DType::f64
                                                       : DType::bf16;

void expect(bool condition, const std::string& what) {
  if (!condition) throw Error(ExitCode::device, "wrong result of {}", what);
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Compares every operation on `count` elements per rank, on the host group and staged.
template <typename T>
void compare(Communicator& host, Communicator& staged, int64_t count) {
  const DType dtype = dtype_of<T>;
  const int size = host.size(), rank = host.rank();
  const auto on_device = [](std::vector<T>& values) { return ShiftedDevice::moved(values.data()); };
  const auto empty = [](int64_t n) { return std::vector<T>(static_cast<size_t>(n)); };

  std::vector<T> one = numbers<T>(rank, count), whole = numbers<T>(rank, count * size);
  std::vector<T> expected = one, data = one;
  host.all_reduce(expected.data(), count, dtype, ReduceOp::sum);
  staged.all_reduce(on_device(data), count, dtype, ReduceOp::sum);
  expect(same_bits(data, expected), "all_reduce");

  expected = data = empty(count);
  host.reduce_scatter(whole.data(), expected.data(), count, dtype, ReduceOp::sum);
  staged.reduce_scatter(on_device(whole), on_device(data), count, dtype, ReduceOp::sum);
  expect(same_bits(data, expected), "reduce_scatter");
  std::vector<T> in_place = whole;
  auto* const own = ShiftedDevice::moved(in_place.data() + rank * count);
  staged.reduce_scatter(on_device(in_place), own, count, dtype, ReduceOp::sum);
  std::copy(expected.begin(), expected.end(), whole.begin() + rank * count);
  expect(same_bits(in_place, whole), "reduce_scatter in place");

  expected = data = empty(count * size);
  host.all_gather(one.data(), expected.data(), count, dtype);
  staged.all_gather(on_device(one), on_device(data), count, dtype);
  expect(same_bits(data, expected), "all_gather");
  in_place = empty(count * size);
  std::copy(one.begin(), one.end(), in_place.begin() + rank * count);
  staged.all_gather(ShiftedDevice::moved(in_place.data() + rank * count), on_device(in_place), count, dtype);
  expect(same_bits(in_place, expected), "all_gather in place");

  host.all_to_all(whole.data(), expected.data(), count, dtype);
  staged.all_to_all(on_device(whole), on_device(data), count, dtype);
  expect(same_bits(data, expected), "all_to_all");

  // Parts of any length, also 0, in any order.
  std::vector<PeerPart> sent, received;
  for (int peer = 0; peer < size; ++peer) {
    sent.push_back({peer * count, (rank + 2 * peer) % 3 * count / 2});
    received.push_back({(size - 1 - peer) * count, (peer + 2 * rank) % 3 * count / 2});
  }
  expected = data = empty(count * size);
  host.all_to_all_v(whole.data(), sent, expected.data(), received, dtype);
  staged.all_to_all_v(on_device(whole), sent, on_device(data), received, dtype);
  expect(same_bits(data, expected), "all_to_all_v");

  for (int root = 0; root < size; ++root) {
    data = one;
    staged.broadcast(on_device(data), count, dtype, root);
    expect(same_bits(data, numbers<T>(root, count)), "broadcast");
  }

  // Two messages of different lengths to the next rank, and the same from the previous one.
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  std::vector<T> first = empty(count), second = empty(count / 2);
  staged.group_start();
  staged.send(on_device(one), count, dtype, next);
  staged.receive(on_device(first), count, dtype, before);
  staged.send(on_device(whole), count / 2, dtype, next);
  staged.receive(on_device(second), count / 2, dtype, before);
  staged.group_end();
  expect(same_bits(first, numbers<T>(before, count)), "the first transfer");
  if (before != 0 || rank != 0) {
    if (rank == 0) staged.send(on_device(one), count, dtype, next);
    if (before == 0) staged.receive(on_device(first), count, dtype, before);
    expect(same_bits(first, numbers<T>(before, count)), "a single transfer");
  }
}

}  // namespace

TEMPLATE_TEST_CASE("staged collectives have the bits of the host's for every size of a piece", "", float, double,
                   bf16) {
  for (const int size : {1, 2, 3, 5}) {
    for (const int64_t bytes : {16 * size, 16 * size + 8, 200, 1000, 100000}) {
      for (const std::string& message : run_ranks(size, [&](Communicator& host) {
             ShiftedDevice device;
             PlainMemory staging(bytes);
             const auto staged = make_staged_communicator(host, device, staging);
             for (const int64_t count : {0, 1, 2, 7, 129, 1001}) {
               // A second round finds the same faults as the twentieth.
               if (!testing::some_cases() || count * size * 8 <= 20 * bytes) compare<TestType>(host, *staged, count);
             }
             staged->barrier();
           })) {
        REQUIRE(message == "");
      }
    }
  }
}

TEST_CASE("ranks that stage other counts are refused, though they differ by whole pieces") {
  for (const std::string& message : run_ranks(2, [&](Communicator& host) {
         ShiftedDevice device;
         PlainMemory staging(64);
         const auto staged = make_staged_communicator(host, device, staging);
         std::vector<float> data(64);
         staged->all_reduce(ShiftedDevice::moved(data.data()), host.rank() == 0 ? 32 : 64, DType::f32, ReduceOp::sum);
       })) {
    REQUIRE(message.find("disagree on the count") != std::string::npos);
  }
}

TEST_CASE("a lane follows the ops that were called before each") {
  for (const std::string& message : run_ranks(2, [&](Communicator& host) {
         ShiftedDevice device;
         PlainMemory staging(64);
         const auto staged = make_staged_communicator(host, device, staging);
         Lane lane("a lane", {.threaded = true, .queue = &device});
         std::vector<float> data(100, 1.0F);
         for (int i = 0; i < 3 * SideQueue::num_marks; ++i) {
           lane.wait(lane.all_reduce(staged.get(), ShiftedDevice::moved(data.data()), 100, DType::f32));
           expect(device.last_marked == i % SideQueue::num_marks, "mark_ops");
           expect(device.last_followed == device.last_marked, "follow_ops");
           for (float& value : data) {
             expect(value == 2, "all_reduce");
             value = 1;
           }
         }
       })) {
    REQUIRE(message == "");
  }
}

TEST_CASE("a lane without a thread whose log is on waits for each collective") {
  for (const std::string& message : run_ranks(2, [&](Communicator& host) {
         ShiftedDevice device;
         EventLog log;
         Lane lane("a lane", {.threaded = false, .queue = &device});
         lane.set_log(&log);
         std::vector<float> data(4, 1.0F);
         lane.wait(lane.all_reduce(&host, data.data(), 1, DType::f32));
         log.start();
         lane.wait(lane.all_gather(&host, data.data(), data.data() + 2, 1, DType::f32));
         lane.wait(lane.all_reduce(&host, data.data(), 2, DType::f32));
         log.stop();
         lane.wait(lane.all_reduce(&host, data.data(), 1, DType::f32));
         const std::vector<Event> events = log.take(log.end());
         expect(events.size() == 4, "events");
         const std::string names[] = {"all_gather", "all_reduce"};
         for (size_t i = 0; i < 2; ++i) {
           const Event& event = events[2 * i];
           const Event& wait = events[2 * i + 1];
           expect(event.name == names[i] && event.shape == "8 B f32 over 2 ranks" && event.bytes_moved == 8, "event");
           expect(event.start_seconds < event.end_seconds, "time");
           expect(wait.name == "waiting for ranks" && wait.awaits == static_cast<int64_t>(2 * i), "wait");
           expect(wait.start_seconds == event.start_seconds, "wait's start");
           expect(wait.end_seconds == event.end_seconds, "wait's end");
         }
       })) {
    REQUIRE(message == "");
  }
}

TEST_CASE("a lane without a thread marks what it queues, and has the ops wait for it") {
  for (const std::string& message : run_ranks(2, [&](Communicator& host) {
         ShiftedDevice device;
         Lane lane("a lane", {.threaded = false, .queue = &device});
         std::vector<float> data(1);
         std::vector<Lane::Ticket> tickets;
         for (int i = 0; i < SideQueue::num_marks + 3; ++i) {
           tickets.push_back(lane.all_reduce(&host, data.data(), 1, DType::f32));
           const int mark = i % SideQueue::num_marks;
           expect(device.last_marked == mark && device.last_followed == mark && device.last_work == mark, "issue");
         }
         expect(device.last_awaited == -1, "issue: it waits");
         lane.wait(Lane::done);
         expect(device.last_awaited == -1, "wait for what is done");
         lane.wait(tickets[10]);
         expect(device.last_awaited == 10, "wait");
         lane.wait_all();
         expect(device.last_awaited == 2, "wait_all");
       })) {
    REQUIRE(message == "");
  }
}

}  // namespace test_staged
