#include "mesh/mesh.h"

#include <algorithm>
#include <fmt/format.h>
#include <string>

#include "base/enum_array.h"
#include "base/error.h"

namespace gptrain::inline mesh {
namespace {

constexpr EnumArray<MeshAxis, MeshAxis, num_mesh_axes> stages_first = {MeshAxis::tensor, MeshAxis::context,
                                                                       MeshAxis::pipeline, MeshAxis::data};

}  // namespace

std::string_view axis_name(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::tensor:
      return "tensor";
    case MeshAxis::context:
      return "context";
    case MeshAxis::data:
      return "data";
    case MeshAxis::pipeline:
      return "pipeline";
  }
  return "?";
}

Mesh::Mesh(const MeshPoint& sizes, int64_t world_size, RankOrder order, ExpertSizes experts)
    : sizes_(sizes), world_size_(world_size), order_(order) {
  std::string product;
  int64_t rest = world_size;
  bool fits = world_size >= 1;
  for (const MeshAxis axis : all_mesh_axes) {
    const int64_t size = sizes[axis];
    if (size < 1) throw Error(ExitCode::usage, "parallel.{} = {}: must be at least 1", axis_name(axis), size);
    product += fmt::format("{}{} {}", product.empty() ? "" : " x ", axis_name(axis), size);
    // Dividing cannot overflow, unlike multiplying.
    fits = fits && rest % size == 0;
    rest /= size;
  }
  if (!fits || rest != 1)
    throw Error(ExitCode::usage, "{} does not make {} ranks: start as many ranks as the product, or change a size",
                product, world_size);
  const int64_t of_stage = world_size / sizes[MeshAxis::pipeline];
  const int64_t of_experts = experts.tensor * experts.expert;
  if (of_experts < 1 || of_stage % of_experts != 0)
    throw Error(ExitCode::usage, "expert_tensor {} x expert {} must divide the {} ranks of a stage", experts.tensor,
                experts.expert, of_stage);
  expert_sizes_ = {experts.tensor, experts.expert, of_stage / of_experts};
}

const EnumArray<MeshAxis, MeshAxis, num_mesh_axes>& Mesh::axes_in_order() const {
  return order_ == RankOrder::tensor_data_pipeline ? all_mesh_axes : stages_first;
}

MeshPoint Mesh::coordinates(int64_t rank) const {
  MeshPoint point;
  for (const MeshAxis axis : axes_in_order()) {
    point[axis] = rank % sizes_[axis];
    rank /= sizes_[axis];
  }
  return point;
}

int64_t Mesh::rank_of(const MeshPoint& coordinates) const {
  int64_t rank = 0;
  int64_t stride = 1;
  for (const MeshAxis axis : axes_in_order()) {
    rank += coordinates[axis] * stride;
    stride *= sizes_[axis];
  }
  return rank;
}

int32_t Mesh::stage_of(int64_t rank) const { return static_cast<int32_t>(coordinates(rank)[MeshAxis::pipeline]); }

bool Mesh::is_first_data_context_rank(int64_t rank) const {
  const MeshPoint at = coordinates(rank);
  return rank == first_rank_of_stage(at[MeshAxis::pipeline], at[MeshAxis::tensor]);
}

int64_t Mesh::first_rank_of_stage(int64_t stage, int64_t tensor_rank) const {
  MeshPoint first;
  first[MeshAxis::pipeline] = stage;
  first[MeshAxis::tensor] = tensor_rank;
  return rank_of(first);
}

std::vector<int64_t> Mesh::group(int64_t rank, std::initializer_list<MeshAxis> axes) const {
  MeshPoint origin = coordinates(rank);
  for (const MeshAxis axis : axes) origin[axis] = 0;
  std::vector<int64_t> ranks = {rank_of(origin)};
  int64_t stride = 1;
  for (const MeshAxis axis : axes_in_order()) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      const size_t num_inner = ranks.size();
      for (int64_t step = 1; step < sizes_[axis]; ++step)
        for (size_t i = 0; i < num_inner; ++i) ranks.push_back(ranks[i] + step * stride);
    }
    stride *= sizes_[axis];
  }
  return ranks;
}

std::vector<std::vector<int64_t>> Mesh::groups(std::initializer_list<MeshAxis> axes) const {
  std::vector<std::vector<int64_t>> all;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    std::vector<int64_t> ranks = group(rank, axes);
    if (ranks.front() == rank) all.push_back(std::move(ranks));
  }
  return all;
}

std::vector<int64_t> Mesh::stage_ranks(int64_t rank) const {
  return group(rank, {MeshAxis::tensor, MeshAxis::context, MeshAxis::data});
}

int64_t Mesh::coordinate(int64_t rank, ExpertAxis axis) const {
  const std::vector<int64_t> ranks = stage_ranks(rank);
  int64_t number = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  for (size_t inner = 0; inner < static_cast<size_t>(axis); ++inner) number /= expert_sizes_[inner];
  return number % size(axis);
}

std::vector<int64_t> Mesh::group(int64_t rank, ExpertAxis axis) const {
  const std::vector<int64_t> ranks = stage_ranks(rank);
  int64_t stride = 1;
  for (size_t inner = 0; inner < static_cast<size_t>(axis); ++inner) stride *= expert_sizes_[inner];
  const int64_t number = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  const int64_t first = number - coordinate(rank, axis) * stride;
  std::vector<int64_t> peers;
  for (int64_t i = 0; i < size(axis); ++i) peers.push_back(ranks[first + i * stride]);
  return peers;
}

}  // namespace gptrain::mesh
