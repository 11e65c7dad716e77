// Collectives on inputs with results known to the bit, over threads and over sockets, and every disagreement between
// thread ranks.
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "catch.h"
#include "comm/communicator.h"
#include "some_cases.h"
#include "unit/comm/ranks.h"

namespace test_collectives {

using namespace gptrain;

namespace {

constexpr int max_tcp_ranks = 5;
const std::vector<int> group_sizes = testing::some_cases() ? std::vector{1, 3} : std::vector{1, 2, 3, 5, 8};
// The last count exceeds the data reduced in one exchange over sockets.
const std::vector<int64_t> counts = {0, 1, 2, 7, 127, 1024, 9001};

void require_success(int size, const RankBody& body) {
  for (const std::string& message : run_ranks(size, body)) REQUIRE(message == "");
}

// Runs the body over threads and over sockets.
void require_success_anywhere(int size, const RankBody& body) {
  require_success(size, body);
  if (size == 1 || size > max_tcp_ranks) return;
  for (const std::string& message : run_tcp_ranks(size, body)) REQUIRE(message == "");
}

void require_failure(int size, const std::vector<std::string>& parts, const RankBody& body) {
  for (const std::string& message : run_ranks(size, body))
    for (const std::string& part : parts) {
      INFO(message);
      REQUIRE(message.find(part) != std::string::npos);
    }
}

// A small integer that depends on rank and element: sums of eight are exact in every type except bf16, which rounds
// those above 256 once and so distinguishes sums in f32 from sums in bf16.
int input_value(int rank, int64_t i) {
  const auto words = philox({static_cast<uint32_t>(rank), 7}, {static_cast<uint32_t>(i), 0, 0, 0});
  return static_cast<int>(words[0] % 255) - 127;
}

template <typename T>
struct Element;
template <>
struct Element<float> {
  static constexpr DType dtype = DType::f32;
  static float from(int value) { return static_cast<float>(value) * 0.125F; }
};
template <>
struct Element<double> {
  static constexpr DType dtype = DType::f64;
  static double from(int value) { return value * 0x1p-40; }
};
template <>
struct Element<bf16> {
  static constexpr DType dtype = DType::bf16;
  static bf16 from(int value) { return to_bf16(static_cast<float>(value)); }
};
template <>
struct Element<int32_t> {
  static constexpr DType dtype = DType::i32;
  static int32_t from(int value) { return value; }
};
template <>
struct Element<int64_t> {
  static constexpr DType dtype = DType::i64;
  static int64_t from(int value) { return value * (int64_t{1} << 40); }
};
template <>
struct Element<uint16_t> {
  static constexpr DType dtype = DType::u16;
  static uint16_t from(int value) { return static_cast<uint16_t>(value + 1000); }
};
template <>
struct Element<uint8_t> {
  static constexpr DType dtype = DType::u8;
  static uint8_t from(int value) { return static_cast<uint8_t>(value + 127); }
};

template <typename T>
std::vector<T> inputs(int rank, int64_t first, int64_t count) {
  std::vector<T> values;
  for (int64_t i = first; i < first + count; ++i) values.push_back(Element<T>::from(input_value(rank, i)));
  return values;
}

template <typename T>
std::vector<T> reduced(int size, int64_t first, int64_t count, ReduceOp op) {
  std::vector<T> values;
  for (int64_t i = first; i < first + count; ++i) {
    int total = input_value(0, i);
    for (int rank = 1; rank < size; ++rank) {
      const int value = input_value(rank, i);
      total = op == ReduceOp::sum   ? total + value
              : op == ReduceOp::max ? std::max(total, value)
                                    : std::min(total, value);
    }
    values.push_back(Element<T>::from(total));
  }
  return values;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
std::vector<T> zeros(int64_t count) {
  return std::vector<T>(static_cast<size_t>(count));
}

// Test assertions must be in the main thread: a rank reports a wrong result as an error.
void expect(bool condition, const char* what) {
  if (!condition) throw Error(ExitCode::device, "wrong result of {}", what);
}

}  // namespace

TEMPLATE_TEST_CASE("reductions equal the exact result, bit by bit", "", float, double, bf16, int32_t, int64_t) {
  using T = TestType;
  for (const int size : group_sizes) {
    require_success_anywhere(size, [&](Communicator& group) {
      for (const int64_t count : counts) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
          auto data = inputs<T>(group.rank(), 0, count);
          group.all_reduce(data.data(), count, Element<T>::dtype, op);
          expect(same_bits(data, reduced<T>(size, 0, count, op)), "all_reduce");

          const auto in = inputs<T>(group.rank(), 0, size * count);
          auto out = zeros<T>(count);
          group.reduce_scatter(in.data(), out.data(), count, Element<T>::dtype, op);
          expect(same_bits(out, reduced<T>(size, group.rank() * count, count, op)), "reduce_scatter");
          expect(same_bits(in, inputs<T>(group.rank(), 0, size * count)), "reduce_scatter, which changed its input");
        }
      }
    });
  }
}

TEMPLATE_TEST_CASE("copies arrive where they should", "", float, double, bf16, int32_t, int64_t, uint16_t, uint8_t) {
  using T = TestType;
  constexpr DType dtype = Element<T>::dtype;
  for (const int size : group_sizes) {
    require_success_anywhere(size, [&](Communicator& group) {
      const int me = group.rank();
      for (const int64_t count : counts) {
        std::vector<T> gathered;
        std::vector<T> transposed;
        for (int rank = 0; rank < size; ++rank) {
          const auto piece = inputs<T>(rank, 0, count);
          gathered.insert(gathered.end(), piece.begin(), piece.end());
          const auto mine = inputs<T>(rank, me * count, count);
          transposed.insert(transposed.end(), mine.begin(), mine.end());
        }
        const auto in = inputs<T>(me, 0, size * count);
        auto out = zeros<T>(size * count);
        group.all_gather(in.data(), out.data(), count, dtype);
        expect(same_bits(out, gathered), "all_gather");

        auto in_place = zeros<T>(size * count);
        if (count > 0) std::memcpy(in_place.data() + me * count, in.data(), static_cast<size_t>(count) * sizeof(T));
        group.all_gather(in_place.data() + me * count, in_place.data(), count, dtype);
        expect(same_bits(in_place, gathered), "all_gather in place");

        group.all_to_all(in.data(), out.data(), count, dtype);
        expect(same_bits(out, transposed), "all_to_all");

        // Parts of any length, also 0, in any order.
        const auto length = [&](int from, int to) { return (from + 2 * to) % 3 * count / 2; };
        std::vector<PeerPart> sent, received;
        auto parts = zeros<T>(size * count);
        for (int peer = 0; peer < size; ++peer) {
          sent.push_back({peer * count, length(me, peer)});
          received.push_back({(size - 1 - peer) * count, length(peer, me)});
          const auto part = inputs<T>(peer, me * count, length(peer, me));
          std::copy(part.begin(), part.end(), parts.begin() + received.back().first);
        }
        auto varied = zeros<T>(size * count);
        group.all_to_all_v(in.data(), sent, varied.data(), received, dtype);
        expect(same_bits(varied, parts), "all_to_all_v");

        for (int root = 0; root < size; ++root) {
          auto data = inputs<T>(me, 0, count);
          group.broadcast(data.data(), count, dtype, root);
          expect(same_bits(data, inputs<T>(root, 0, count)), "broadcast");
        }
      }
    });
  }
}

TEST_CASE("inexact sums are those of rank order, on every rank") {
  const int size = 5;
  const int64_t count = 4099;
  const auto value = [](int rank, int64_t i) { return 1.0F / static_cast<float>(3 + rank * 7 + i % 101); };
  std::vector<float> expected;
  for (int64_t i = 0; i < count; ++i) {
    float total = value(0, i);
    for (int rank = 1; rank < size; ++rank) total += value(rank, i);
    expected.push_back(total);
  }
  require_success_anywhere(size, [&](Communicator& group) {
    std::vector<float> data;
    for (int64_t i = 0; i < count; ++i) data.push_back(value(group.rank(), i));
    group.all_reduce(data.data(), count, DType::f32, ReduceOp::sum);
    expect(same_bits(data, expected), "all_reduce");
  });
}

TEST_CASE("a NaN of any rank survives sum, max and min") {
  for (int source = 0; source < 3; ++source) {
    require_success(3, [&](Communicator& group) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
        float data = group.rank() == source ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
        group.all_reduce(&data, 1, DType::f32, op);
        expect(data != data, "all_reduce of a NaN");
      }
    });
  }
}

TEST_CASE("integer sums wrap around") {
  require_success(2, [](Communicator& group) {
    int32_t data = std::numeric_limits<int32_t>::max();
    group.all_reduce(&data, 1, DType::i32, ReduceOp::sum);
    expect(data == -2, "all_reduce");
  });
}

TEST_CASE("sends meet receives, in order and in groups") {
  SECTION("a chain, as pipeline stages use it") {
    require_success_anywhere(5, [](Communicator& group) {
      for (int64_t round = 0; round < 50; ++round) {
        int64_t value = round;
        if (group.rank() > 0) group.receive(&value, 1, DType::i64, group.rank() - 1);
        expect(value == round + group.rank(), "receive");
        ++value;
        if (group.rank() + 1 < group.size()) group.send(&value, 1, DType::i64, group.rank() + 1);
      }
    });
  }
  SECTION("everyone to everyone at once, itself included, two messages per pair") {
    for (const int size : group_sizes) {
      require_success_anywhere(size, [&](Communicator& group) {
        for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1009}}) {
          const auto in = inputs<float>(group.rank(), 0, 2 * count);
          auto out = zeros<float>(2 * size * count);
          group.group_start();
          for (int peer = 0; peer < size; ++peer)
            for (int64_t part = 0; part < 2; ++part) {
              group.receive(out.data() + (2 * peer + part) * count, count, DType::f32, peer);
              group.send(in.data() + part * count, count, DType::f32, peer);
            }
          group.group_end();
          std::vector<float> expected;
          for (int peer = 0; peer < size; ++peer) {
            const auto piece = inputs<float>(peer, 0, 2 * count);
            expected.insert(expected.end(), piece.begin(), piece.end());
          }
          expect(same_bits(out, expected), "a group of transfers");
        }
      });
    }
  }
  SECTION("a rank that is done may leave while the others go on") {
    require_success(3, [](Communicator& group) {
      int32_t value = 1;
      if (group.rank() == 0) return group.send(&value, 1, DType::i32, 1);
      if (group.rank() == 1) group.receive(&value, 1, DType::i32, 0);
      for (int round = 0; round < 100; ++round) {
        if (group.rank() == 1) group.send(&value, 1, DType::i32, 2);
        if (group.rank() == 2) group.receive(&value, 1, DType::i32, 1);
      }
    });
  }
}

TEST_CASE("many barriers with more ranks than cores") {
  const int size = 16;
  std::vector<int> rounds(size);
  require_success(size, [&](Communicator& group) {
    for (int round = 1; round <= 200; ++round) {
      rounds[static_cast<size_t>(group.rank())] = round;
      group.barrier();
      for (const int other : rounds) expect(other == round, "barrier");
      group.barrier();
    }
  });
}

TEST_CASE("ranks that disagree all fail, and say on what") {
  std::vector<float> data(64);
  std::vector<std::vector<float>> buffers(3, data);
  const auto buffer = [&](const Communicator& group) { return buffers[static_cast<size_t>(group.rank())].data(); };
  SECTION("count") {
    require_failure(
        3, {"disagree on the count: rank 0 calls all_reduce(4 x f32, sum), rank 1 calls all_reduce(5 x f32, sum)"},
        [&](Communicator& group) {
          group.all_reduce(buffer(group), group.rank() == 1 ? 5 : 4, DType::f32, ReduceOp::sum);
        });
  }
  SECTION("type") {
    require_failure(3, {"disagree on the type", "rank 2 calls all_gather(4 x bf16)"}, [&](Communicator& group) {
      group.all_gather(buffer(group), buffer(group) + 32, 4, group.rank() == 2 ? DType::bf16 : DType::f32);
    });
  }
  SECTION("reduction") {
    require_failure(3, {"disagree on the reduction", "rank 2 calls reduce_scatter(4 x f32, max)"},
                    [&](Communicator& group) {
                      group.reduce_scatter(buffer(group), buffer(group) + 32, 4, DType::f32,
                                           group.rank() == 2 ? ReduceOp::max : ReduceOp::min);
                    });
  }
  SECTION("root") {
    require_failure(3, {"disagree on the root"},
                    [&](Communicator& group) { group.broadcast(buffer(group), 4, DType::f32, group.rank() / 2); });
  }
  SECTION("operation") {
    require_failure(3, {"disagree on the operation", "rank 1 calls barrier()"}, [&](Communicator& group) {
      if (group.rank() == 1) return group.barrier();
      group.broadcast(buffer(group), 4, DType::f32, 0);
    });
  }
  SECTION("a message's count and type") {
    for (const auto& [count, dtype, word] : {std::tuple{5, DType::f32, "count"}, std::tuple{4, DType::i32, "type"}})
      require_failure(2, {std::string("disagree on the ") + word, "rank 0 calls send(4 x f32 to rank 1)"},
                      [&](Communicator& group) {
                        if (group.rank() == 0) group.send(buffer(group), 4, DType::f32, 1);
                        if (group.rank() == 1) group.receive(buffer(group), count, dtype, 0);
                        group.barrier();
                      });
  }
  SECTION("the length of a part") {
    const auto exchange = [&](Communicator& group) {
      const int64_t count = group.rank() == 1 ? 3 : 2;
      const std::vector<PeerPart> sent = {{0, group.rank() == 0 ? 2 : count}, {2, 2}}, received = {{8, 2}, {16, 2}};
      group.all_to_all_v(buffer(group), sent, buffer(group), received, DType::f32);
    };
    const std::string what =
        "disagree on the count: rank 1 calls all_to_all_v(3 x f32), rank 0 calls all_to_all_v(2 x f32)";
    require_failure(2, {what}, exchange);
  }
  SECTION("the group stays failed") {
    require_failure(2, {"disagree on the count"}, [&](Communicator& group) {
      try {
        group.all_reduce(buffer(group), 1 + group.rank(), DType::f32, ReduceOp::sum);
      } catch (const Error&) {
        group.barrier();
      }
    });
  }
}

TEST_CASE("a rank that is gone, or waits in vain, never hangs the others") {
  SECTION("gone before a collective") {
    const auto messages = run_ranks(4, [](Communicator& group) {
      if (group.rank() == 2) return;
      float data = 0;
      group.all_reduce(&data, 1, DType::f32, ReduceOp::sum);
    });
    REQUIRE(messages[2].empty());
    for (const size_t rank : {0, 1, 3})
      REQUIRE(messages[rank].find("rank 2 left the group while rank") != std::string::npos);
  }
  SECTION("gone before a receive") {
    const auto messages = run_ranks(2, [](Communicator& group) {
      int32_t value = 0;
      if (group.rank() == 0) group.receive(&value, 1, DType::i32, 1);
    });
    REQUIRE(messages[0] == "rank 1 left the group while rank 0 waits in receive(1 x i32 from rank 1)");
  }
  SECTION("everyone waits for someone else") {
    require_failure(
        3, {"wait for each other", "rank 0 in send(1 x i32 to rank 1)", "rank 1 in barrier()", "rank 2 in barrier()"},
        [](Communicator& group) {
          int32_t value = 0;
          if (group.rank() == 0) return group.send(&value, 1, DType::i32, 1);
          group.barrier();
        });
  }
  SECTION("a message to oneself that nobody receives") {
    require_failure(1, {"rank 0 in send(1 x i32 to rank 0)"}, [](Communicator& group) {
      int32_t value = 0;
      group.send(&value, 1, DType::i32, 0);
    });
  }
}

TEST_CASE("a rank that gives a group up ends its own call, and those of its peers") {
  for (const bool receiving : {false, true}) {
    require_failure(3, {"rank 0 left the group while rank"}, [&](Communicator& group) {
      float data = 1;
      group.all_reduce(&data, 1, DType::f32, ReduceOp::sum);
      if (group.rank() > 0) {
        // Rank 1 calls after rank 0 has given up, and fails as well.
        if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
        return group.barrier();
      }
      const std::jthread gives_up([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        group.abort();
      });
      if (receiving) return group.receive(&data, 1, DType::f32, 1);
      group.barrier();
    });
  }
}

TEST_CASE("what a group cannot do is refused") {
  REQUIRE_THROWS_WITH(make_local_group(0), "a group needs at least one rank, not 0");
  auto handles = make_local_group(1);
  Communicator& group = *handles[0];
  REQUIRE(group.rank() == 0);
  REQUIRE(group.size() == 1);
  uint8_t data[4] = {};
  REQUIRE_THROWS_WITH(group.all_reduce(data, 4, DType::u8, ReduceOp::sum),
                      "all_reduce(4 x u8, sum): no reductions of this type");
  REQUIRE_THROWS_WITH(group.send(data, 4, DType::u8, 1),
                      "send(4 x u8 to rank 1): count or rank out of range in a group of 1");
  REQUIRE_THROWS_WITH(group.broadcast(data, -1, DType::u8, 0),
                      "broadcast(-1 x u8, root 0): count or rank out of range in a group of 1");
  const std::vector<PeerPart> one = {{0, 2}}, other = {{0, 3}}, negative = {{-1, 2}}, two = {{0, 1}, {1, 1}};
  const std::string refused = "all_to_all_v of u8 in a group of 1: ";
  REQUIRE_THROWS_WITH(group.all_to_all_v(data, one, data, two, DType::u8), refused + "not one part for each rank");
  REQUIRE_THROWS_WITH(group.all_to_all_v(data, negative, data, one, DType::u8),
                      refused + "a part with a negative start or count");
  REQUIRE_THROWS_WITH(group.all_to_all_v(data, one, data, other, DType::u8),
                      refused + "a rank's part for itself has two lengths");
  REQUIRE_THROWS_WITH(group.group_end(), "group_end without group_start");
  group.group_start();
  REQUIRE_THROWS_WITH(group.group_start(), "group_start inside a group of transfers");
  REQUIRE_THROWS_WITH(group.barrier(), "barrier() inside a group of transfers");
}

}  // namespace test_collectives
