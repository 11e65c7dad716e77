// The mesh of a config, and the ranks of each group.
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "model_fixture.h"
#include "parallel/groups.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::small_config;

namespace {

using Ranks = std::vector<int64_t>;

}  // namespace

TEST_CASE("tensor ranks lie next to each other, data ranks see other samples") {
  const RunConfig config =
      small_config(Family::llama, {"parallel.tensor=4", "batch.micro=2"}, 8);  // two key/value heads
  const Mesh mesh = make_mesh(config, 8);
  CHECK(mesh.size(MeshAxis::tensor) == 4);
  CHECK(mesh.size(MeshAxis::data) == 2);
  CHECK(group_ranks(config, mesh, 6, GroupKind::world) == Ranks{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(group_ranks(config, mesh, 6, GroupKind::tensor) == Ranks{4, 5, 6, 7});
  CHECK(group_ranks(config, mesh, 6, GroupKind::copies) == Ranks{2, 6});
  CHECK(group_ranks(config, mesh, 6, GroupKind::replicas) == Ranks{6, 7});
  CHECK(group_ranks(config, mesh, 5, GroupKind::replicas) == Ranks{4, 5});
}

TEST_CASE("without fewer heads than ranks a group of replicas is the rank alone") {
  const RunConfig config = small_config(Family::llama, {"parallel.tensor=2", "batch.micro=2"}, 4);
  const Mesh mesh = make_mesh(config, 4);
  for (int64_t rank = 0; rank < 4; ++rank) CHECK(group_ranks(config, mesh, rank, GroupKind::replicas) == Ranks{rank});
}

TEST_CASE("a world that does not divide into model replicas is refused") {
  const RunConfig config = small_config(Family::gpt2, {"parallel.tensor=3", "batch.global=6", "batch.micro=1"}, 3);
  const auto refusal = [&](int64_t world_size) {
    try {
      make_mesh(config, world_size);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::usage);
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  const std::string replicas = " into model replicas of parallel.tensor * parallel.pipeline = 3 * 1 ranks (try ";
  CHECK(refusal(1) == "1 rank does not divide" + replicas + "3)");
  CHECK(refusal(4) == "4 ranks do not divide" + replicas + "6 or 3)");
  // Six micro-batches are not shared by four or five data ranks, and not by more than six.
  CHECK(refusal(11) == "11 ranks do not divide" + replicas + "18 or 9)");
  CHECK(refusal(19) == "19 ranks do not divide" + replicas + "18)");
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(refusal(most) == std::to_string(most) + " ranks do not divide" + replicas + "18)");
}

TEST_CASE("a planned rank knows its place, and has no groups of one") {
  const RunConfig config = small_config(Family::llama, {"parallel.tensor=4", "batch.micro=2"}, 8);
  LaneTraffic traffic{};
  const RankGroups groups(config, 8, 5, traffic);
  CHECK(groups.rank() == 5);
  CHECK(groups.tensor_place().rank == 1);
  CHECK(groups.tensor_place().size == 4);
  CHECK(groups.sample_rank() == 1);
  CHECK(groups.num_sample_ranks() == 2);
  CHECK(groups.copy_rank() == 1);
  CHECK(groups.num_copies() == 2);
  REQUIRE(groups.group(LaneKind::tensor, GroupKind::tensor) != nullptr);
  CHECK(groups.group(LaneKind::tensor, GroupKind::tensor)->rank() == 1);
  for (const GroupKind kind : {GroupKind::world, GroupKind::replicas, GroupKind::copies})
    REQUIRE(groups.group(LaneKind::gradients, kind) != nullptr);
  CHECK(groups.group(LaneKind::gradients, GroupKind::replicas)->rank() == 1);
  CHECK(groups.group(LaneKind::gradients, GroupKind::replicas)->size() == 2);
  // A group that a lane does not work in must not pass for one of a single rank.
  CHECK_THROWS_WITH(groups.group(LaneKind::weights, GroupKind::world), "the lane weights has no group world");
  CHECK(groups.group(LaneKind::pipeline_forward, GroupKind::pipeline) == nullptr);
  LaneTraffic none{};
  const RankGroups alone(small_config(Family::llama), 1, 0, none);
  for (const GroupKind kind : {GroupKind::world, GroupKind::tensor, GroupKind::replicas, GroupKind::copies})
    CHECK(alone.group(LaneKind::gradients, kind) == nullptr);
  for (size_t lane = 0; lane < num_lanes; ++lane) CHECK_FALSE(alone.works(static_cast<LaneKind>(lane)));
}
