// Where a rank stands: rank <-> (tensor, context, expert, data, pipeline) coordinates, and the groups along the axes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/kinds.h"

namespace gptrain::inline mesh {

enum class MeshAxis : uint8_t { tensor, context, expert, data, pipeline };
constexpr int num_mesh_axes = 5;

std::string_view axis_name(MeshAxis axis);

// One number for each axis: the mesh's sizes, or a rank's coordinates.
struct MeshPoint {
  std::array<int64_t, num_mesh_axes> values{};

  int64_t& operator[](MeshAxis axis) { return values[static_cast<size_t>(axis)]; }
  int64_t operator[](MeshAxis axis) const { return values[static_cast<size_t>(axis)]; }
  bool operator==(const MeshPoint&) const = default;
};

// Order of ranks, for coordinates (t, c, e, d, p) and sizes (T, C, E, D, P):
//   tensor_data_pipeline   rank = t + T (c + C (e + E (d + D p)))   stages begin at node borders
//   tensor_pipeline_data   rank = t + T (c + C (e + E (p + P d)))   replicas begin at node borders
// In both, tensor neighbours, which exchange most, share the fastest links.
class Mesh {
 public:
  // Throws Error(usage) if a size is below 1 or the product of the sizes is not world_size.
  Mesh(const MeshPoint& sizes, int64_t world_size, RankOrder order = RankOrder::tensor_data_pipeline);

  int64_t world_size() const { return world_size_; }
  RankOrder order() const { return order_; }
  int64_t size(MeshAxis axis) const { return sizes_[axis]; }

  // REQUIRES: rank in [0, world_size), coordinates in [0, size(axis)).
  MeshPoint coordinates(int64_t rank) const;
  int64_t rank_of(const MeshPoint& coordinates) const;
  int32_t stage_of(int64_t rank) const;
  // Returns the stage's rank with coordinate `tensor_rank` on the tensor axis and 0 on all other axes.
  int64_t first_rank_of_stage(int64_t stage, int64_t tensor_rank = 0) const;

  // Returns the ranks, in rising order, whose coordinates differ from `rank`'s along `axes` only, `rank` included.
  // Example: a dense gradient is summed over {context, expert, data}.
  std::vector<int64_t> group(int64_t rank, std::initializer_list<MeshAxis> axes) const;
  // Returns every such group once, ordered by first rank: the order in which all ranks create their communicators.
  std::vector<std::vector<int64_t>> groups(std::initializer_list<MeshAxis> axes) const;

 private:
  // Axes ordered by how close in rank number their neighbours are, closest first.
  const std::array<MeshAxis, num_mesh_axes>& axes_in_order() const;

  MeshPoint sizes_;
  int64_t world_size_;
  RankOrder order_;
};

}  // namespace gptrain::mesh
