// Coordinates of ranks: rank <-> (tensor, context, data, pipeline) coordinates, and the groups along the axes. Ranks of
// a stage have a second set of coordinates, on the mesh of its experts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/enum_array.h"
#include "base/kinds.h"

namespace gptrain::inline mesh {

enum class MeshAxis : uint8_t { tensor, context, data, pipeline };
constexpr int num_mesh_axes = 4;
// All axes, in the order of reports.
constexpr EnumArray<MeshAxis, MeshAxis, num_mesh_axes> all_mesh_axes = {MeshAxis::tensor, MeshAxis::context,
                                                                        MeshAxis::data, MeshAxis::pipeline};

// Returns the axis' key in the config's section `parallel`: "tensor", "pipeline".
std::string_view axis_name(MeshAxis axis);

// One number for each axis: the mesh's sizes, or a rank's coordinates.
struct MeshPoint {
  EnumArray<MeshAxis, int64_t, num_mesh_axes> values{};

  int64_t& operator[](MeshAxis axis) { return values[axis]; }
  int64_t operator[](MeshAxis axis) const { return values[axis]; }
  bool operator==(const MeshPoint&) const = default;
};

// Sizes of the mesh of experts: each expert's layers are cut over `tensor` ranks, and the experts are spread over
// `expert` groups of that many ranks. All other ranks of a stage, expert_data, hold replicas of the same experts'
// parameters.
struct ExpertSizes {
  int64_t tensor = 1;
  int64_t expert = 1;
};

enum class ExpertAxis : uint8_t { expert_tensor, expert, expert_data };
constexpr int num_expert_axes = 3;

// Order of ranks, for coordinates (t, c, d, p) and sizes (T, C, D, P):
//   tensor_data_pipeline   rank = t + T (c + C (d + D p))   stages begin at node borders
//   tensor_pipeline_data   rank = t + T (c + C (p + P d))   replicas begin at node borders
// In both, tensor neighbours, which exchange most, share the fastest links.
//
// The same ranks of a stage, numbered n = t + T (c + C d), form the mesh of experts: n = et + ET (e + E ed). E may be
// larger than D, as experts are spread over tensor and context ranks as well.
class Mesh {
 public:
  // Throws Error(usage) if a size is below 1, if the product of the sizes is not world_size, or if the experts' sizes
  // do not divide the ranks of a stage.
  Mesh(const MeshPoint& sizes, int64_t world_size, RankOrder order = RankOrder::tensor_data_pipeline,
       ExpertSizes experts = {});

  int64_t world_size() const { return world_size_; }
  RankOrder order() const { return order_; }
  int64_t size(MeshAxis axis) const { return sizes_[axis]; }

  // REQUIRES: rank in [0, world_size), coordinates in [0, size(axis)).
  MeshPoint coordinates(int64_t rank) const;
  int64_t rank_of(const MeshPoint& coordinates) const;
  int32_t stage_of(int64_t rank) const;
  // Data and context ranks: a group of them has equal coordinates on the axes of tensor and pipeline, equal shapes and
  // equal memory. Returns the size of a group, and whether `rank` is the first of its group.
  int64_t num_data_context_ranks() const { return world_size_ / size(MeshAxis::tensor) / size(MeshAxis::pipeline); }
  bool is_first_data_context_rank(int64_t rank) const;
  // Returns the stage's rank with coordinate `tensor_rank` on the tensor axis and 0 on all other axes.
  int64_t first_rank_of_stage(int64_t stage, int64_t tensor_rank = 0) const;

  // Returns the ranks, in rising order, whose coordinates differ from `rank`'s along `axes` only, `rank` included.
  // Example: a dense gradient is summed over {context, data}.
  std::vector<int64_t> group(int64_t rank, std::initializer_list<MeshAxis> axes) const;
  // Returns every such group once, ordered by first rank: the order in which all ranks create their communicators.
  std::vector<std::vector<int64_t>> groups(std::initializer_list<MeshAxis> axes) const;

  // The same for the mesh of experts: size, a rank's coordinate, and the ranks, in rising order, that differ from
  // `rank` along `axis` only. All are ranks of one stage.
  int64_t size(ExpertAxis axis) const { return expert_sizes_[axis]; }
  int64_t coordinate(int64_t rank, ExpertAxis axis) const;
  std::vector<int64_t> group(int64_t rank, ExpertAxis axis) const;

 private:
  // Returns the ranks of `rank`'s stage, in rising order.
  std::vector<int64_t> stage_ranks(int64_t rank) const;
  // Axes ordered by how close in rank number their neighbours are, closest first.
  const EnumArray<MeshAxis, MeshAxis, num_mesh_axes>& axes_in_order() const;

  MeshPoint sizes_;
  int64_t world_size_;
  RankOrder order_;
  EnumArray<ExpertAxis, int64_t, num_expert_axes> expert_sizes_;
};

}  // namespace gptrain::mesh
