#include <set>

#include "base/error.h"
#include "catch.h"
#include "mesh/mesh.h"

namespace test_mesh {

using namespace gptrain;

namespace {

using Ranks = std::vector<int64_t>;

MeshPoint point(int64_t tensor, int64_t context, int64_t data, int64_t pipeline) {
  return {{tensor, context, data, pipeline}};
}

}  // namespace

TEST_CASE("ranks and coordinates are inverse, tensor fastest and pipeline slowest") {
  const Mesh mesh(point(2, 3, 5, 4), 120);
  REQUIRE(mesh.coordinates(0) == point(0, 0, 0, 0));
  REQUIRE(mesh.coordinates(1) == point(1, 0, 0, 0));
  REQUIRE(mesh.coordinates(2) == point(0, 1, 0, 0));
  REQUIRE(mesh.coordinates(6) == point(0, 0, 1, 0));
  REQUIRE(mesh.coordinates(30) == point(0, 0, 0, 1));
  REQUIRE(mesh.rank_of(point(1, 2, 4, 3)) == 119);
  for (int64_t rank = 0; rank < 120; ++rank) REQUIRE(mesh.rank_of(mesh.coordinates(rank)) == rank);
}

TEST_CASE("stages may be nearer than data ranks") {
  const Mesh mesh(point(2, 1, 3, 4), 24, RankOrder::tensor_pipeline_data);
  REQUIRE(mesh.coordinates(1) == point(1, 0, 0, 0));
  REQUIRE(mesh.coordinates(2) == point(0, 0, 0, 1));
  REQUIRE(mesh.coordinates(8) == point(0, 0, 1, 0));
  for (int64_t rank = 0; rank < 24; ++rank) REQUIRE(mesh.rank_of(mesh.coordinates(rank)) == rank);
  REQUIRE(mesh.group(11, {MeshAxis::pipeline}) == Ranks{9, 11, 13, 15});
  REQUIRE(mesh.group(11, {MeshAxis::data}) == Ranks{3, 11, 19});
  REQUIRE(mesh.group(3, {MeshAxis::data, MeshAxis::pipeline}) == Ranks{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23});
}

TEST_CASE("a stage's ranks know it, its first ones have no other coordinate but the tensor axis's") {
  const Mesh near(point(2, 1, 3, 4), 24, RankOrder::tensor_pipeline_data);
  REQUIRE(near.stage_of(11) == 1);
  REQUIRE(near.first_rank_of_stage(1) == 2);
  REQUIRE(near.first_rank_of_stage(3, 1) == 7);
  const Mesh far(point(2, 1, 3, 4), 24);
  REQUIRE(far.stage_of(11) == 1);
  REQUIRE(far.first_rank_of_stage(3, 1) == 19);
}

TEST_CASE("groups along one axis and along several") {
  const Mesh mesh(point(2, 1, 3, 2), 12);
  REQUIRE(mesh.group(3, {MeshAxis::tensor}) == Ranks{2, 3});
  REQUIRE(mesh.group(3, {MeshAxis::data}) == Ranks{1, 3, 5});
  REQUIRE(mesh.group(3, {MeshAxis::pipeline}) == Ranks{3, 9});
  REQUIRE(mesh.group(3, {MeshAxis::context}) == Ranks{3});
  REQUIRE(mesh.group(10, {MeshAxis::pipeline, MeshAxis::data}) == Ranks{0, 2, 4, 6, 8, 10});
  REQUIRE(mesh.groups({MeshAxis::tensor}) == std::vector<Ranks>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}});
  REQUIRE(mesh.groups({MeshAxis::data}) == std::vector<Ranks>{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}});
}

TEST_CASE("the groups of a set of axes are a partition that every member sees the same") {
  const Mesh mesh(point(2, 2, 6, 2), 48);
  const std::initializer_list<MeshAxis> axes = {MeshAxis::context, MeshAxis::data};
  std::set<int64_t> seen;
  for (const Ranks& ranks : mesh.groups(axes)) {
    REQUIRE(ranks.size() == 12);
    REQUIRE(std::is_sorted(ranks.begin(), ranks.end()));
    for (const int64_t rank : ranks) {
      REQUIRE(seen.insert(rank).second);
      REQUIRE(mesh.group(rank, axes) == ranks);
    }
  }
  REQUIRE(seen.size() == 48);
}

TEST_CASE("the experts of a stage have a mesh of their own over its ranks") {
  const Mesh mesh(point(2, 1, 16, 1), 32, RankOrder::tensor_data_pipeline, {.tensor = 1, .expert = 32});
  REQUIRE(mesh.group(5, ExpertAxis::expert).size() == 32);
  REQUIRE(mesh.group(5, ExpertAxis::expert_data) == Ranks{5});
  const Mesh near(point(2, 1, 4, 2), 16, RankOrder::tensor_pipeline_data, {.tensor = 2, .expert = 2});
  REQUIRE(near.size(ExpertAxis::expert_data) == 2);
  // The stage of rank 6 has ranks 2, 3, 6, 7, 10, 11, 14 and 15.
  REQUIRE(near.group(6, ExpertAxis::expert_tensor) == Ranks{6, 7});
  REQUIRE(near.group(6, ExpertAxis::expert) == Ranks{2, 6});
  REQUIRE(near.group(6, ExpertAxis::expert_data) == Ranks{6, 14});
  REQUIRE_THROWS_WITH(Mesh(point(2, 1, 3, 2), 12, RankOrder::tensor_data_pipeline, {.tensor = 2, .expert = 2}),
                      "expert_tensor 2 x expert 2 must divide the 6 ranks of a stage");
}

TEST_CASE("sizes that do not make the world are refused") {
  REQUIRE_THROWS_WITH(
      Mesh(point(2, 1, 3, 1), 8),
      "tensor 2 x context 1 x data 3 x pipeline 1 does not make 8 ranks: start as many ranks as the product, or change "
      "a size");
  REQUIRE_THROWS_AS(Mesh(point(2, 1, 2, 1), 8), Error);
  REQUIRE_THROWS_AS(Mesh(point(1, 1, 1, 1), 0), Error);
  // The product is 2^64, which would wrap around to 0.
  REQUIRE_THROWS_AS(Mesh(point(1LL << 32, 1, 1LL << 32, 1), 1), Error);
  try {
    Mesh(point(0, 1, 1, 1), 1);
    FAIL("a size of 0 was taken");
  } catch (const Error& error) {
    REQUIRE(std::string(error.what()) == "parallel.tensor = 0: must be at least 1");
    REQUIRE(error.code() == ExitCode::usage);
  }
}

}  // namespace test_mesh
