// Memory and bytes of the collectives between processes, compared with the plan, over a transport that counts and moves
// nothing.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <malloc.h>
#include <memory>
#include <vector>

#include "catch.h"
#include "comm/exchange.h"
#include "comm/transport.h"
#include "counting_group.h"
#include "sanitized.h"

namespace test_exchange {

using namespace gptrain;

namespace {

class CountingTransport final : public Transport {
 public:
  CountingTransport(int rank, int size, int64_t& sent_bytes) : rank_(rank), size_(size), sent_bytes_(sent_bytes) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void exchange(std::span<const Message> messages) override {
    for (const Message& message : messages) sent_bytes_ += message.sending ? message.bytes : 0;
  }
  void abort() override {}

 private:
  int rank_, size_;
  int64_t& sent_bytes_;
};

std::unique_ptr<Communicator> make_rank(int rank, int size, int64_t& sent_bytes,
                                        std::shared_ptr<ExchangeScratch> scratch) {
  return make_exchange_communicator(std::make_unique<CountingTransport>(rank, size, sent_bytes),
                                    std::make_shared<Activity>(), "a group", std::move(scratch));
}
std::unique_ptr<Communicator> make_rank(int rank, int size, int64_t& sent_bytes) {
  return make_rank(rank, size, sent_bytes, std::make_shared<ExchangeScratch>(size));
}

// Runs every collective with `count` elements per rank, and calls check(name) after each.
template <typename Check>
void run_all(Communicator& group, int64_t count, std::vector<float>& data, const Check& check) {
  float* const all = data.data();
  group.all_reduce(all, count * group.size(), DType::f32, ReduceOp::sum);
  check("all_reduce");
  group.reduce_scatter(all, all + group.rank() * count, count, DType::f32, ReduceOp::sum);
  check("reduce_scatter");
  group.all_gather(all + group.rank() * count, all, count, DType::f32);
  check("all_gather");
  group.all_to_all(all, all + count * group.size(), count, DType::f32);
  check("all_to_all");
  std::vector<PeerPart> sent, received;
  for (int peer = 0; peer < group.size(); ++peer) {
    sent.push_back({peer * count, (count + group.rank() + 2 * peer) / 3});
    received.push_back({(peer + group.size()) * count, (count + peer + 2 * group.rank()) / 3});
  }
  group.all_to_all_v(all, sent, all, received, DType::f32);
  check("all_to_all_v");
  for (int root = 0; root < group.size(); ++root) {
    group.broadcast(all, count * group.size(), DType::f32, root);
    check("broadcast");
  }
  group.send(all, count, DType::f32, (group.rank() + 1) % group.size());
  check("send");
}

}  // namespace

TEST_CASE("an exchange sends the bytes of the plan, once it is large enough for bandwidth to count") {
  constexpr int64_t count = 70'001;  // more than is reduced in one exchange
  for (const int size : {2, 3, 5, 8}) {
    std::vector<float> data(static_cast<size_t>(2 * count * size));
    for (int rank = 0; rank < size; ++rank) {
      int64_t sent_bytes = 0;
      TrafficTable planned{};
      std::vector<int64_t> totals;
      const auto group = make_rank(rank, size, sent_bytes);
      run_all(*group, count, data, [&](const char*) { totals.push_back(sent_bytes); });
      testing::CountingGroup plan(rank, size, planned);
      size_t call = 0;
      run_all(plan, count, data, [&](const char* what) {
        int64_t total = 0;
        for (const Traffic& traffic : planned) total += traffic.sent_bytes;
        INFO(what << ", rank " << rank << " of " << size);
        CHECK(totals[call++] == total);
      });
    }
  }
}

TEST_CASE("a small exchange sends all to all, in one message less") {
  for (const int size : {2, 5}) {
    for (int rank = 0; rank < size; ++rank) {
      int64_t sent_bytes = 0;
      float data[64] = {};
      const auto group = make_rank(rank, size, sent_bytes);
      group->all_reduce(data, 64, DType::f32, ReduceOp::sum);
      CHECK(sent_bytes == (size - 1) * 64 * 4);
      sent_bytes = 0;
      group->broadcast(data, 64, DType::f32, 1);
      CHECK(sent_bytes == (rank == 1 ? (size - 1) * 64 * 4 : 0));
    }
  }
}

TEST_CASE("a small sum over many ranks sends twice the data, and not as often as there are ranks") {
  constexpr int64_t count = 1500;  // as many sums of squares as a model of some hundred layers has tensors
  for (const int size : {6, 64, 1000, 5000}) {
    INFO(size << " ranks");
    std::vector<double> data(count);
    int64_t sent_bytes = 0;
    const auto group = make_rank(1, size, sent_bytes);
    group->all_reduce(data.data(), count, DType::f64, ReduceOp::sum);
    CHECK(sent_bytes <= std::max<int64_t>(64 << 10, 2 * (count + size) * 8));
  }
}

TEST_CASE("groups that share the memory of the largest reduce in the pieces that it has room for") {
  for (const int size : {2, 3, 64, 1000}) {
    const auto shared = std::make_shared<ExchangeScratch>(3 * size);
    for (const int ranks : {size, 3 * size}) {
      int64_t sent_bytes = 0;
      std::vector<float> data(static_cast<size_t>(ranks) * 5'000);
      make_rank(ranks - 1, ranks, sent_bytes, shared)
          ->all_reduce(data.data(), static_cast<int64_t>(data.size()), DType::f32, ReduceOp::sum);
      CHECK(sent_bytes == 2 * (ranks - 1) * 5'000 * 4);
    }
  }
}

TEST_CASE("a group without memory moves data, and reduces nothing") {
  int64_t sent_bytes = 0;
  float numbers[2] = {};
  const auto group = make_rank(0, 2, sent_bytes, nullptr);
  group->barrier();
  group->all_gather(numbers, numbers, 1, DType::f32);
  CHECK(sent_bytes == 4);
  CHECK_THROWS_WITH(group->all_reduce(numbers, 1, DType::f32, ReduceOp::sum),
                    "all_reduce(1 x f32, sum) in a group without memory to reduce in");
}

TEST_CASE("a group allocates the bytes that it says, and no more in use") {
  if (under_address_sanitizer()) return;  // allocator without such statistics
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  constexpr int64_t small = 16 << 10;  // the object itself, lists of messages
  for (const int size : {2, 3, 8, 64, 1000}) {
    INFO(size << " ranks");
    CHECK(exchange_scratch_bytes(size) >= size * (int64_t{16} << 10));
    CHECK(exchange_scratch_bytes(size) <= std::max(size * (int64_t{16} << 10), int64_t{16} << 20));
    std::vector<float> data(static_cast<size_t>(size) * 20'000);
    int64_t sent_bytes = 0;
    const int64_t before = allocated();
    const auto group = make_rank(size - 1, size, sent_bytes);
    group->all_reduce(data.data(), static_cast<int64_t>(data.size()), DType::f32, ReduceOp::sum);
    const int64_t taken = allocated() - before;
    const int64_t lists = static_cast<int64_t>(size) * 512;
    CHECK(taken >= exchange_scratch_bytes(size));
    CHECK(taken <= exchange_scratch_bytes(size) + small + lists);
  }
}

TEST_CASE("bytes of a call that are too many stop at the largest amount") {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  constexpr int64_t large = int64_t{1} << 58;  // elements: 2^60 bytes
  constexpr int ranks = 1 << 16;
  const auto sent = [](Operation operation, int64_t count) {
    return sent_bytes({.operation = operation, .dtype = DType::f32, .op = ReduceOp::sum, .peer = 0, .count = count}, 0,
                      ranks);
  };
  CHECK(sent(Operation::all_reduce, large) == (int64_t{1} << 61) - (int64_t{1} << 45));
  CHECK(sent(Operation::all_reduce, 8 * large) == most);
  CHECK(sent(Operation::reduce_scatter, large) == most);
  CHECK(sent(Operation::all_gather, large) == most);
}

}  // namespace test_exchange
