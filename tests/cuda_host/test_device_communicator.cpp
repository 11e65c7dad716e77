// Collectives on devices, over links that need none: a group on the host.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "catch.h"
#include "device_communicator.h"
#include "host/device_memory.h"
#include "host/device_queues.h"
#include "runtime.h"
#include "some_cases.h"
#include "unit/comm/ranks.h"

using namespace gptrain;

namespace {

// Runs queued work late and in any order that the two queues' marks allow.
class HostLinks : public Links {
 public:
  HostLinks(Communicator& host, uint64_t seed)
      : host_(host), queues_(seed), moves_(queues_.add_queue()), sums_(queues_.add_queue()) {}
  ~HostLinks() override { queues_.drop_all(); }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  Stream stream() const override { return on(moves_); }
  Stream sums() const override { return on(sums_); }
  void sums_follow_moves() override { queues_.follow(sums_, queues_.mark(moves_)); }
  void mark_sums(int half) override { summed_[half] = queues_.mark(sums_); }
  void moves_follow_sums(int half) override { queues_.follow(moves_, summed_[half]); }

  void exchange(std::span<const Transfer> transfers) override {
    queues_.add(moves_, [this, all = std::vector(transfers.begin(), transfers.end())] {
      host_.group_start();
      for (const Transfer& t : all) {
        if (t.in != nullptr) {
          host_.send(t.in, t.bytes, DType::u8, t.peer);
        } else {
          host_.receive(t.out, t.bytes, DType::u8, t.peer);
        }
      }
      host_.group_end();
    });
  }
  void all_gather(const void* in, void* out, int64_t bytes) override {
    queues_.add(moves_, [=, this] { host_.all_gather(in, out, bytes, DType::u8); });
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    queues_.add(moves_, [=, this] { host_.broadcast(data, bytes, DType::u8, root); });
  }
  // Waits for the lane's own queue: work that it does not follow may be left.
  void synchronize() override { queues_.wait(queues_.mark(moves_)); }

 private:
  Stream on(int queue) const { return {.device = &queues_, .queue = queue}; }

  Communicator& host_;
  mutable simt::DeviceQueues queues_;
  const int moves_, sums_;
  simt::Mark summed_[2];
};

// Links of ranks that send to nobody in particular.
class GatherLinks final : public HostLinks {
 public:
  using HostLinks::HostLinks;
  void exchange(std::span<const Transfer> /*transfers*/) override { throw Error(ExitCode::device, "an exchange"); }
};

// One rank of a simulated large group, whose ranks each have their number in every element. Peers first send their
// parts, until all have been sent to, and then the sum.
class ManyLinks : public Links {
 public:
  static constexpr int rank_of_test = 3;

  explicit ManyLinks(int size) : size_(size) {}

  static double value(int rank) { return 1.0 / static_cast<double>(rank + 1); }

  int rank() const override { return rank_of_test; }
  int size() const override { return size_; }
  Stream stream() const override { return {}; }
  Stream sums() const override { return {}; }
  void sums_follow_moves() override {}
  void mark_sums(int) override {}
  void moves_follow_sums(int) override {}
  void exchange(std::span<const Transfer> transfers) override {
    const simt::DeviceAccess access;
    // Slices are sent from all of the data, results from this rank's own.
    const void* first_sent = nullptr;
    bool gathers = true;
    for (const Transfer& t : transfers) {
      if (t.in != nullptr && first_sent == nullptr) first_sent = t.in;
      gathers = gathers && (t.in == nullptr || t.in == first_sent);
    }
    gathers = gathers && reduced_;
    for (const Transfer& t : transfers)
      if (t.out != nullptr) fill(t.out, t.bytes, gathers ? sum() : value(t.peer));
    reduced_ = true;
  }
  void all_gather(const void* in, void* out, int64_t bytes) override {
    const simt::DeviceAccess access;
    for (int rank = 0; rank < size_; ++rank) {
      auto* const piece = static_cast<std::byte*>(out) + rank * bytes;
      if (piece != in) fill(piece, bytes, reduced_ ? sum() : value(rank));
    }
  }
  void broadcast(void*, int64_t, int) override {}
  void synchronize() override {}

 private:
  static void fill(void* data, int64_t bytes, double value) {
    std::fill_n(static_cast<double*>(data), bytes / static_cast<int64_t>(sizeof value), value);
  }
  double sum() const {
    double sum = 0;
    for (int rank = 0; rank < size_; ++rank) sum += value(rank);
    return sum;
  }

  int size_;
  bool reduced_ = false;
};

// Records the largest power of two, up to 256, that divides the addresses of all received data.
class AlignedLinks final : public ManyLinks {
 public:
  AlignedLinks(int size, uintptr_t& alignment) : ManyLinks(size), alignment_(alignment) {}

  void exchange(std::span<const Transfer> transfers) override {
    for (const Transfer& t : transfers)
      while (reinterpret_cast<uintptr_t>(t.out) % alignment_ != 0) alignment_ /= 2;
    ManyLinks::exchange(transfers);
  }

 private:
  uintptr_t& alignment_;
};

template <typename T>
constexpr DType dtype_of = std::is_same_v<T, float>     ? DType::f32
                           : std::is_same_v<T, double>  ? DType::f64
                           : std::is_same_v<T, int32_t> ? DType::i32
                           : std::is_same_v<T, int64_t> ? DType::i64
                           : std::is_same_v<T, f16>     ? DType::f16
                                                        : DType::bf16;

// Returns numbers whose sums round differently in every order.
template <typename T>
std::vector<T> numbers(int rank, int64_t count) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto words = philox({static_cast<uint32_t>(rank), 11}, {static_cast<uint32_t>(i), 0, 0, 0});
    if constexpr (std::is_integral_v<T>) {
      values.push_back(static_cast<T>(uint64_t{words[0]} * words[1]));
    } else {
      const double value =
          (static_cast<double>(words[0]) - 0x1p31) * 0x1p-31 / static_cast<double>(1 + words[1] % 1000);
      if constexpr (std::is_same_v<T, bf16>) {
        values.push_back(to_bf16(static_cast<float>(value)));
      } else if constexpr (std::is_same_v<T, f16>) {
        values.push_back(to_f16(static_cast<float>(value)));
      } else {
        values.push_back(static_cast<T>(value));
      }
    }
  }
  return values;
}

// A rank's device, and vectors on it.
class Device {
 public:
  Device() : runtime_(make_runtime(0)) {}
  std::unique_ptr<DeviceMemory> scratch(int64_t bytes) { return runtime_->allocate(bytes); }

  // Calls body(address) with the values on the device, and copies them back once the group's work is done.
  template <typename T>
  void with(Communicator& group, std::vector<T>& values, const std::function<void(T*)>& body) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    const auto memory = runtime_->allocate(bytes);
    runtime_->upload(memory->data(), values.data(), bytes);
    runtime_->synchronize();  // collectives do not wait for the runtime's uploads
    body(reinterpret_cast<T*>(memory->data()));
    group.synchronize();
    runtime_->download(values.data(), memory->data(), bytes);
  }

 private:
  std::unique_ptr<Runtime> runtime_;
};

template <typename T>
void expect_same(const std::vector<T>& a, const std::vector<T>& b, const char* what) {
  if (a.size() != b.size() || (!a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) != 0))
    throw Error(ExitCode::device, "wrong result of {}", what);
}

// Compares every operation on `count` elements per rank, on the host and on devices.
template <typename T>
void compare(Communicator& host, Communicator& group, Device& device, int64_t count) {
  const DType dtype = dtype_of<T>;
  const int size = host.size(), rank = host.rank();
  const std::vector<T> one = numbers<T>(rank, count), whole = numbers<T>(rank, count * size);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    std::vector<T> expected = one, data = one;
    host.all_reduce(expected.data(), count, dtype, op);
    device.with<T>(group, data, [&](T* at) { group.all_reduce(at, count, dtype, op); });
    expect_same(data, expected, "all_reduce");

    expected.resize(static_cast<size_t>(count));
    host.reduce_scatter(whole.data(), expected.data(), count, dtype, op);
    data = whole;
    device.with<T>(group, data, [&](T* at) { group.reduce_scatter(at, at + rank * count, count, dtype, op); });
    std::vector<T> in_place = whole;
    std::copy(expected.begin(), expected.end(), in_place.begin() + rank * count);
    expect_same(data, in_place, "reduce_scatter");
  }

  std::vector<T> expected(static_cast<size_t>(count * size)), data = expected;
  host.all_gather(one.data(), expected.data(), count, dtype);
  std::copy(one.begin(), one.end(), data.begin() + rank * count);
  device.with<T>(group, data, [&](T* at) { group.all_gather(at + rank * count, at, count, dtype); });
  expect_same(data, expected, "all_gather");

  host.all_to_all(whole.data(), expected.data(), count, dtype);
  std::vector<T> in = whole;
  device.with<T>(group, in, [&](T* from) {
    device.with<T>(group, data, [&](T* at) { group.all_to_all(from, at, count, dtype); });
  });
  expect_same(data, expected, "all_to_all");

  std::vector<PeerPart> sent, received;
  for (int peer = 0; peer < size; ++peer) {
    sent.push_back({peer * count, (rank + 2 * peer) % 3 * count / 2});
    received.push_back({(size - 1 - peer) * count, (peer + 2 * rank) % 3 * count / 2});
  }
  expected = data = std::vector<T>(static_cast<size_t>(count * size));
  host.all_to_all_v(whole.data(), sent, expected.data(), received, dtype);
  device.with<T>(group, in, [&](T* from) {
    device.with<T>(group, data, [&](T* at) { group.all_to_all_v(from, sent, at, received, dtype); });
  });
  expect_same(data, expected, "all_to_all_v");

  for (int root = 0; root < size; ++root) {
    data = one;
    device.with<T>(group, data, [&](T* at) { group.broadcast(at, count, dtype, root); });
    expect_same(data, numbers<T>(root, count), "broadcast");
  }

  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  in = one;
  data = std::vector<T>(static_cast<size_t>(count));
  device.with<T>(group, in, [&](T* from) {
    device.with<T>(group, data, [&](T* at) {
      group.group_start();
      group.send(from, count, dtype, next);
      group.receive(at, count, dtype, before);
      group.group_end();
    });
  });
  expect_same(data, numbers<T>(before, count), "transfers");
}

}  // namespace

TEMPLATE_TEST_CASE("collectives of devices have the bits of the host's for every size of scratch", "", float, double,
                   bf16, f16, int32_t, int64_t) {
  // Rounds of a collective with 8 bytes per element; all ranks wait in each. The second finds the same faults as the
  // twentieth.
  const int64_t most_rounds = testing::some_cases() ? 20 : 150;
  for (const int size : {1, 2, 3, 5}) {
    for (const int64_t bytes : {int64_t{16} * size, int64_t{4000}, int64_t{1} << 20}) {
      for (const std::string& message : run_ranks(size, [&](Communicator& host) {
             Device device;
             const auto scratch = device.scratch(bytes);
             const auto seed = static_cast<uint64_t>(bytes + host.rank());
             const auto group = make_device_communicator(std::make_unique<HostLinks>(host, seed), *scratch);
             for (const int64_t count : {0, 1, 7, 129, 1001})
               if (count * size * 8 <= bytes * most_rounds) compare<TestType>(host, *group, device, count);
             group->barrier();
           })) {
        REQUIRE(message == "");
      }
    }
  }
}

TEST_CASE("ranks that send to nobody in particular sum the same bits") {
  const int size = 3;
  for (const int64_t bytes : {int64_t{16} * size, int64_t{4000}}) {
    for (const std::string& message : run_ranks(size, [&](Communicator& host) {
           Device device;
           const auto scratch = device.scratch(bytes);
           const auto group = make_device_communicator(std::make_unique<GatherLinks>(host, 7), *scratch, false);
           for (const int64_t count : {1, 7, 129, 1001}) {
             std::vector<float> data = numbers<float>(host.rank(), count), expected = data;
             host.all_reduce(expected.data(), count, DType::f32, ReduceOp::sum);
             device.with<float>(*group, data,
                                [&](float* at) { group->all_reduce(at, count, DType::f32, ReduceOp::sum); });
             expect_same(data, expected, "a sum by gathers");
           }
         })) {
      REQUIRE(message == "");
    }
  }
}

TEST_CASE("a group of any number of ranks reduces, in scratch for one element of each") {
  for (const int size : {725, 3000}) {
    Device device;
    for (const int64_t bytes : {int64_t{16} * size, int64_t{1} << 20}) {
      const auto scratch = device.scratch(bytes);
      for (const int64_t count : {1, 700, 1501, 7001}) {
        INFO(size << " ranks, " << count << " elements, " << bytes << " bytes");
        const auto group = make_device_communicator(std::make_unique<ManyLinks>(size), *scratch);
        std::vector<double> data(static_cast<size_t>(count), ManyLinks::value(ManyLinks::rank_of_test));
        device.with<double>(*group, data, [&](double* at) { group->all_reduce(at, count, DType::f64, ReduceOp::sum); });
        double sum = 0;
        for (int rank = 0; rank < size; ++rank) sum += ManyLinks::value(rank);
        for (const double value : data) REQUIRE(value == sum);
      }
    }
  }
}

TEST_CASE("pieces begin where a kernel reads them the widest, whatever size the scratch has") {
  Device device;
  for (const int size : {4, 5, 6, 12}) {
    for (const int64_t bytes : {1 << 16, (1 << 16) + 16, (1 << 16) + 8, 100'000}) {
      INFO(size << " ranks, " << bytes << " bytes");
      const auto scratch = device.scratch(bytes);
      uintptr_t alignment = 256;
      const auto group = make_device_communicator(std::make_unique<AlignedLinks>(size, alignment), *scratch);
      std::vector<double> data(static_cast<size_t>(size * 4096));
      device.with<double>(*group, data, [&](double* at) {
        group->reduce_scatter(at, at + 4096 * ManyLinks::rank_of_test, 4096, DType::f64, ReduceOp::sum);
      });
      CHECK(alignment == 256);
    }
  }
}

TEST_CASE("scratch that a group's smallest exchange does not fit is refused") {
  for (const std::string& message : run_ranks(3, [&](Communicator& host) {
         Device device;
         const auto scratch = device.scratch(16 * 3 - 1);
         make_device_communicator(std::make_unique<HostLinks>(host, 1), *scratch);
       })) {
    REQUIRE(message.find("is too large: sums need") != std::string::npos);
  }
}
