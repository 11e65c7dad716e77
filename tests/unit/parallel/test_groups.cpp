// The mesh of a config, and the ranks of each group.
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "comm/staged.h"
#include "model_fixture.h"
#include "parallel/groups.h"
#include "unit/named_target.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::find_target;
using gptrain::testing::small_config;

namespace {

using Ranks = std::vector<int64_t>;

}  // namespace

TEST_CASE("tensor ranks lie next to each other, data ranks see other samples") {
  const RunConfig config =
      small_config(Family::llama, {"parallel.tensor=4", "batch.micro=2"}, 8);  // two key-value heads
  const Mesh mesh = make_mesh(config, 8);
  CHECK(mesh.size(MeshAxis::tensor) == 4);
  CHECK(mesh.size(MeshAxis::data) == 2);
  CHECK(group_ranks(config, mesh, 6, GroupKind::world) == Ranks{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(group_ranks(config, mesh, 6, GroupKind::tensor) == Ranks{4, 5, 6, 7});
  CHECK(group_ranks(config, mesh, 6, GroupKind::data) == Ranks{2, 6});
  CHECK(group_ranks(config, mesh, 6, GroupKind::kv_heads) == Ranks{6, 7});
  CHECK(group_ranks(config, mesh, 5, GroupKind::kv_heads) == Ranks{4, 5});
}

TEST_CASE("stages of a pipeline are far apart, and its ends hold a tied table") {
  RunConfig config = small_config(Family::llama, {"parallel.tensor=2", "batch.micro=2", "model.tied_head=true"}, 4);
  config.parallel.pipeline = 3;
  const Mesh mesh = make_mesh(config, 12);
  CHECK(mesh.size(MeshAxis::pipeline) == 3);
  CHECK(mesh.size(MeshAxis::data) == 2);
  CHECK(group_ranks(config, mesh, 6, GroupKind::next) == Ranks{6, 10});
  CHECK(group_ranks(config, mesh, 6, GroupKind::previous) == Ranks{2, 6});
  CHECK(group_ranks(config, mesh, 10, GroupKind::next) == Ranks{10});
  CHECK(group_ranks(config, mesh, 2, GroupKind::previous) == Ranks{2});
  CHECK(group_ranks(config, mesh, 6, GroupKind::loss) == Ranks{0, 2, 4, 6, 8, 10});
  CHECK(group_ranks(config, mesh, 6, GroupKind::data) == Ranks{4, 6});
  CHECK(group_ranks(config, mesh, 6, GroupKind::tensor) == Ranks{6, 7});
  CHECK(group_ranks(config, mesh, 3, GroupKind::tied) == Ranks{3, 11});
  CHECK(group_ranks(config, mesh, 11, GroupKind::tied) == Ranks{3, 11});
  CHECK(group_ranks(config, mesh, 7, GroupKind::tied) == Ranks{7});
}

TEST_CASE("stages pass numbers on and back, in a chain or a ring, and sum what both ends of a pipeline hold") {
  for (const int64_t chunks : {1, 2}) {
    RunConfig config = small_config(Family::llama, {"parallel.tensor=2", "batch.micro=2", "model.tied_head=true"}, 4);
    config.parallel.pipeline = 3;
    config.parallel.virtual_stages = chunks;
    run_local_ranks(12, [&](World& world) {
      RankGroups groups(config, world);
      const int64_t stage = groups.stage();
      const int64_t number = 100 * world.rank();
      int64_t from_previous = -1, from_next = -1;
      float table = static_cast<float>(world.rank());
      Communicator* const ends = groups.group(LaneKind::gradients, GroupKind::tied);
      groups.lane(LaneKind::gradients).all_reduce(ends, &table, 1, DType::f32);
      const auto receive = [&](LaneKind lane, int64_t* to) {
        groups.lane(lane).receive(groups.group(lane, neighbours_of(lane)), to, 1, DType::i64,
                                  RankGroups::peer_on(lane));
      };
      const auto send = [&](LaneKind lane) {
        groups.lane(lane).send(groups.group(lane, neighbours_of(lane)), &number, 1, DType::i64,
                               RankGroups::peer_on(lane));
      };
      // Receives come first: no lane waits for another one.
      receive(LaneKind::receive_previous, &from_previous);
      receive(LaneKind::receive_next, &from_next);
      send(LaneKind::send_next);
      send(LaneKind::send_previous);
      groups.wait_all();
      const auto expect = [](bool condition) {
        if (!condition) throw Error(ExitCode::device, "a wrong number");
      };
      const bool ring = chunks > 1;
      const int64_t at_stage = number - 400 * stage;
      expect((ends == nullptr) == (stage == 1));
      expect(table == static_cast<float>(stage == 1 ? world.rank() : 2 * (world.rank() % 4) + 8));
      expect(from_previous == (stage == 0 && !ring ? -1 : at_stage + 400 * ((stage + 2) % 3)));
      expect(from_next == (stage == 2 && !ring ? -1 : at_stage + 400 * ((stage + 1) % 3)));
      expect(groups.exchanged_bytes() == ExchangeBytes{});  // threads reduce in place
    });
  }
}

TEST_CASE("ranks along the context and data axes hold the same parameters") {
  const Mesh mesh({{2, 2, 6, 2}}, 48);
  const RunConfig config = small_config(Family::gpt2);
  CHECK(group_ranks(config, mesh, 25, GroupKind::data) == Ranks{25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47});
}

TEST_CASE("a lane has what its largest group takes, and only lanes that reduce take anything") {
  const RunConfig config = small_config(
      Family::llama, {"parallel.tensor=4", "batch.micro=2", "parallel.zero=1", "precision.compute=bf16"}, 8);
  const RankGroups groups(config, 8, 5);
  CHECK(groups.ranks_that_reduce(LaneKind::tensor) == 4);
  CHECK(groups.ranks_that_reduce(LaneKind::gradients) == 8);
  CHECK(groups.ranks_that_reduce(LaneKind::weights) == 2);
  CHECK_FALSE(groups.works(LaneKind::send_next));
  Target processes;
  processes.of_processes = true;
  const int64_t scratch = (4 + 8 + 2) * (int64_t{256} << 10);
  CHECK(planned_exchange_bytes(processes, groups) == ExchangeBytes{scratch, 0});
  // With a device both are host memory, unless devices exchange data directly.
  Target devices = find_target("h100");
  devices.of_processes = true;
  devices.device_links = false;
  CHECK(planned_exchange_bytes(devices, groups) == ExchangeBytes{0, scratch + staging_bytes});
  devices.device_links = true;
  const ExchangeBytes linked = planned_exchange_bytes(devices, groups);
  CHECK(linked[0] > 0);
  CHECK(linked[1] == scratch);
  RunConfig in_stages = config;
  in_stages.parallel.pipeline = 2;
  const RankGroups staged(in_stages, 16, 5);
  CHECK(staged.works(LaneKind::receive_next));
  CHECK_FALSE(staged.works(LaneKind::send_previous));
  CHECK(staged.ranks_that_reduce(LaneKind::receive_next) == 1);
  CHECK(planned_exchange_bytes(processes, staged) == ExchangeBytes{(4 + 16 + 2) * (int64_t{256} << 10), 0});
}

TEST_CASE("without fewer heads than ranks a group of key and value heads is the rank alone") {
  const RunConfig config = small_config(Family::llama, {"parallel.tensor=2", "batch.micro=2"}, 4);
  const Mesh mesh = make_mesh(config, 4);
  for (int64_t rank = 0; rank < 4; ++rank) CHECK(group_ranks(config, mesh, rank, GroupKind::kv_heads) == Ranks{rank});
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
  const std::string replicas = " into model replicas of parallel.tensor * parallel.pipeline = 3 * 1 ranks (start ";
  CHECK(refusal(1) == "1 rank does not divide" + replicas + "3 ranks)");
  CHECK(refusal(4) == "4 ranks do not divide" + replicas + "6 or 3 ranks)");
  // Six micro-batches cannot be divided over four, five or more than six data ranks.
  CHECK(refusal(11) == "11 ranks do not divide" + replicas + "18 or 9 ranks)");
  CHECK(refusal(19) == "19 ranks do not divide" + replicas + "18 ranks)");
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(refusal(most) == std::to_string(most) + " ranks do not divide" + replicas + "18 ranks)");
}

TEST_CASE("a planned rank knows its place, and has no groups of one") {
  const RunConfig config = small_config(Family::llama, {"parallel.tensor=4", "batch.micro=2"}, 8);
  const RankGroups groups(config, 8, 5);
  CHECK(groups.rank() == 5);
  CHECK(groups.on_tensor_axis().rank == 1);
  CHECK(groups.on_tensor_axis().size == 4);
  CHECK(groups.sample_rank() == 1);
  CHECK(groups.num_sample_ranks() == 2);
  CHECK(groups.data_rank() == 1);
  CHECK(groups.num_data_ranks() == 2);
  REQUIRE(groups.group(LaneKind::tensor, GroupKind::tensor) != nullptr);
  CHECK(groups.group(LaneKind::tensor, GroupKind::tensor)->rank() == 1);
  for (const GroupKind kind : {GroupKind::world, GroupKind::kv_heads, GroupKind::data})
    REQUIRE(groups.group(LaneKind::gradients, kind) != nullptr);
  CHECK(groups.group(LaneKind::gradients, GroupKind::kv_heads)->rank() == 1);
  CHECK(groups.group(LaneKind::gradients, GroupKind::kv_heads)->size() == 2);
  // A group that a lane does not use must not pass for a group of one rank.
  CHECK_THROWS_WITH(groups.group(LaneKind::weights, GroupKind::world), "the lane weights has no group world");
  CHECK(groups.group(LaneKind::send_next, GroupKind::next) == nullptr);
  const RankGroups alone(small_config(Family::llama), 1, 0);
  for (const GroupKind kind : {GroupKind::world, GroupKind::tensor, GroupKind::kv_heads, GroupKind::data})
    CHECK(alone.group(LaneKind::gradients, kind) == nullptr);
  for (size_t lane = 0; lane < num_lanes; ++lane) CHECK_FALSE(alone.works(static_cast<LaneKind>(lane)));
}
