#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "comm/agree.h"
#include "step/device.h"

namespace test_agree {

using namespace gptrain;

namespace {

// Returns the outcome of agreeing on `work` for each rank of a world of three: results, or "CODE: message".
std::vector<std::string> outcomes(const std::function<std::string(int)>& work) {
  std::vector<std::string> found(3);
  run_local_ranks(3, [&](World& world) {
    const auto group = world.make_group({0, 1, 2});
    std::string& own = found[static_cast<size_t>(world.rank())];
    try {
      for (const std::string& result : agree(group.get(), world, [&] { return work(world.rank()); })) own += result;
    } catch (const Error& error) {
      own = std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    }
  });
  return found;
}

}  // namespace

TEST_CASE("agreeing ranks get the results of all") {
  REQUIRE(outcomes([](int rank) { return std::string(static_cast<size_t>(rank), 'x') + "."; }) ==
          std::vector<std::string>(3, ".x.xx."));
}

TEST_CASE("a failure of any rank fails all, and rank 0 tells of the lowest") {
  const std::string host = make_local_world(1).front()->host(0);
  REQUIRE(outcomes([](int rank) -> std::string {
            if (rank > 0) throw Error(ExitCode::data, "no file {}", rank);
            return "fine";
          }) == std::vector<std::string>{"3: rank 1 (" + host + "): no file 1", "3: ", "3: "});
  REQUIRE(outcomes([](int rank) -> std::string {
            throw Error(rank == 0 ? ExitCode::usage : ExitCode::device, "rank {} cannot", rank);
          }) == std::vector<std::string>{"2: rank 0 cannot", "2: ", "2: "});
}

TEST_CASE("ranks on different models of devices are refused, unless that is allowed") {
  const std::string host = make_local_world(1).front()->host(0);
  const auto run = [](bool mixed, const std::vector<std::string>& models) {
    RunConfig config;
    config.comm.mixed_machines = mixed;
    std::vector<std::string> found(3);
    run_local_ranks(3, [&](World& world) {
      const auto group = world.make_group({0, 1, 2});
      const auto index = static_cast<size_t>(world.rank());
      try {
        require_same_models(config.comm.mixed_machines, group.get(), world, models[index]);
      } catch (const Error& error) {
        found[index] = std::to_string(static_cast<int>(error.code())) + ": " + error.what();
      }
    });
    return found;
  };
  const std::vector<std::string> fine(3);
  CHECK(run(false, {"H200", "H200", "H200"}) == fine);
  CHECK(run(true, {"H200", "H200", "a CPU"}) == fine);
  CHECK(run(false, {"H200", "H200", "a CPU"}) ==
        std::vector<std::string>{"5: rank 2 (" + host + ") computes on a CPU, rank 0 (" + host +
                                     ") on H200: these round differently, which comm.mixed_machines = true allows",
                                 "5: ", "5: "});
}

TEST_CASE("a rank that is alone agrees with itself") {
  const auto world = make_local_world(1);
  REQUIRE(agree(nullptr, *world.front(), [] { return std::string("result"); }) == std::vector<std::string>{"result"});
  REQUIRE_THROWS_WITH(agree_on(nullptr, *world.front(), [] { throw Error(ExitCode::data, "no file"); }), "no file");
}

TEST_CASE("a failure with a message is thrown before one without") {
  for (int speaker = 0; speaker < 3; ++speaker) {
    REQUIRE_THROWS_WITH(run_local_ranks(3,
                                        [&](World& world) {
                                          const bool speaks = world.rank() == speaker;
                                          throw Error(ExitCode::diverged, speaks ? "diverged" : "");
                                        }),
                        "diverged");
  }
}

}  // namespace test_agree
