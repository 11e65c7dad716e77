// Worlds of thread ranks: groups are made collectively, by members and non-members.
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "comm/world.h"
#include "unit/comm/ranks.h"

namespace test_world {

using namespace gptrain;

namespace {

std::vector<std::string> run_world(int size, const std::function<void(World&)>& body) {
  auto worlds = make_local_world(size);
  return run_rank_threads(size, [&](int rank) {
    const auto world = std::move(worlds[static_cast<size_t>(rank)]);
    body(*world);
  });
}

int64_t sum_of_ranks(Communicator& group, int64_t value) {
  group.all_reduce(&value, 1, DType::i64, ReduceOp::sum);
  return value;
}

void expect(bool condition, const char* what) {
  if (!condition) throw Error(ExitCode::device, "wrong {}", what);
}

}  // namespace

TEST_CASE("every rank makes every group, and gets a handle on its own") {
  const int size = 6;
  const auto messages = run_world(size, [&](World& world) {
    std::vector<std::unique_ptr<Communicator>> pairs;
    for (int first = 0; first < size; first += 2) pairs.push_back(world.make_group({first, first + 1}));
    const auto evens = world.make_group({0, 2, 4});
    const auto reversed = world.make_group({5, 4, 3, 2, 1, 0});
    const auto alone = world.make_group({3});
    for (int pair = 0; pair < size / 2; ++pair) {
      const auto& group = pairs[static_cast<size_t>(pair)];
      expect((group != nullptr) == (world.rank() / 2 == pair), "membership");
      if (group) expect(sum_of_ranks(*group, world.rank()) == 4 * pair + 1, "sum over a pair");
    }
    expect((evens != nullptr) == (world.rank() % 2 == 0), "membership of the even ranks");
    if (evens) expect(evens->rank() == world.rank() / 2 && sum_of_ranks(*evens, world.rank()) == 6, "even ranks");
    expect(reversed->rank() == size - 1 - world.rank(), "rank in a group of another order");
    expect((alone != nullptr) == (world.rank() == 3), "membership of a group of one");
    if (alone) expect(sum_of_ranks(*alone, 7) == 7, "sum over a group of one");
  });
  for (const std::string& message : messages) REQUIRE(message.empty());
}

TEST_CASE("groups outlive their world") {
  auto worlds = make_local_world(1);
  const auto group = worlds[0]->make_group({0});
  worlds.clear();
  REQUIRE(sum_of_ranks(*group, 3) == 3);
}

TEST_CASE("ranks that make different groups, or leave before they have made theirs, fail with a message") {
  SECTION("different groups") {
    auto worlds = make_local_world(3);
    REQUIRE(worlds[0]->make_group({0, 1}) != nullptr);
    REQUIRE_THROWS_WITH(worlds[2]->make_group({0, 2}),
                        "the ranks disagree on group 0: rank 0 makes it of 0,1, rank 2 of 0,2");
  }
  SECTION("a rank that has left") {
    const auto messages = run_world(3, [](World& world) {
      if (world.rank() == 1) return;
      const auto all = world.make_group({0, 1, 2});
      all->barrier();
    });
    REQUIRE(messages[0].find("rank 1 left the group") != std::string::npos);
    REQUIRE(messages[2].find("rank 1 left the group") != std::string::npos);
  }
}

TEST_CASE("lists that are no group are refused") {
  REQUIRE_THROWS_WITH(make_local_world(0), "a world needs at least one rank, not 0");
  auto worlds = make_local_world(2);
  const char* rule = "a group must hold ranks of 0 to 1, each once, not ";
  REQUIRE_THROWS_WITH(worlds[0]->make_group({}), std::string(rule) + "{}");
  REQUIRE_THROWS_WITH(worlds[0]->make_group({0, 2}), std::string(rule) + "{0,2}");
  REQUIRE_THROWS_WITH(worlds[0]->make_group({-1}), std::string(rule) + "{-1}");
  REQUIRE_THROWS_WITH(worlds[0]->make_group({1, 0, 1}), std::string(rule) + "{1,0,1}");
}

TEST_CASE("ranks as threads: the first error is the one that is thrown") {
  std::atomic<int> sum = 0;
  run_local_ranks(3, [&](World& world) { sum += world.rank(); });
  REQUIRE(sum == 3);
  REQUIRE_THROWS_WITH(run_local_ranks(3,
                                      [](World& world) {
                                        const auto all = world.make_group({0, 1, 2});
                                        if (world.rank() == 1) throw Error(ExitCode::data, "no such file");
                                        all->barrier();
                                      }),
                      "no such file");
}

}  // namespace test_world
