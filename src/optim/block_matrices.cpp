#include "optim/block_matrices.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace gptrain::inline optim {
namespace {

// Calls body(row, col, rows, cols, at) for each rectangle of a part: the rest of a row, whole rows, the start of a row.
// `at`: elements of the part before the rectangle.
template <typename Body>
void for_each_rows(const MatrixPart& part, const Body& body) {
  for (int64_t at = 0; at < part.count;) {
    const int64_t row = (part.first + at) / part.cols, col = (part.first + at) % part.cols;
    const int64_t whole_rows = col == 0 ? (part.count - at) / part.cols : 0;
    const int64_t rows = std::max<int64_t>(whole_rows, 1);
    const int64_t cols = whole_rows > 0 ? part.cols : std::min(part.cols - col, part.count - at);
    body(part.row + row, part.col + col, rows, cols, at);
    at += rows * cols;
  }
}

int64_t smaller_side_squared(const BlockMatrix& matrix) {
  const int64_t side = std::min(matrix.rows, matrix.cols);
  return side * side;
}

// RETURNS the work of the matrix' products, up to a constant factor.
int64_t work_of(const BlockMatrix& matrix) { return smaller_side_squared(matrix) * std::max(matrix.rows, matrix.cols); }

}  // namespace

std::vector<BlockMatrix> block_matrices(const ModelSpec& spec, const ParameterLayout& layout) {
  std::vector<BlockMatrix> matrices;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    if (!tensor.of_block_matrix || layout.units[tensor.unit].elements == 0) continue;
    std::vector<Section> sections = tensor.sections;
    if (sections.empty()) sections = {{tensor.shape[0], 1}};
    int64_t first_row = 0;
    for (const Section& section : sections) {
      matrices.push_back({static_cast<int64_t>(i), first_row, section.rows, tensor.shape[1]});
      first_row += section.rows;
    }
  }
  return matrices;
}

std::vector<MatrixExchange::Holder> MatrixExchange::holders_of_stage() const {
  const RankGroups& groups = context_.groups;
  const Mesh& mesh = groups.mesh();
  std::vector<Holder> holders;
  for (const int64_t rank : mesh.group(groups.rank(), {MeshAxis::tensor, MeshAxis::context, MeshAxis::data})) {
    const MeshPoint at = mesh.coordinates(rank);
    const auto on = [&](ExpertAxis axis) { return mesh.coordinate(rank, axis); };
    const int64_t index = at[MeshAxis::context] + mesh.size(MeshAxis::context) * at[MeshAxis::data];
    holders.push_back({.tensor = at[MeshAxis::tensor],
                       .data = groups.piece_of(ReplicaGroup::data, index),
                       .experts = {.size = mesh.size(ExpertAxis::expert),
                                   .rank = on(ExpertAxis::expert),
                                   .tensor = {mesh.size(ExpertAxis::expert_tensor), on(ExpertAxis::expert_tensor)}},
                       .expert_data = groups.piece_of(ReplicaGroup::expert_data, on(ExpertAxis::expert_data))});
  }
  return holders;
}

MatrixExchange::MatrixExchange(const UpdateContext& context)
    : context_(context),
      group_(context.groups.stage_group()),
      holders_(holders_of_stage()),
      matrices_(block_matrices(context.parameters.spec(), context.parameters.layout())) {
  const Mesh& mesh = context.groups.mesh();
  const std::vector<int64_t> all =
      mesh.group(context.groups.rank(), {MeshAxis::tensor, MeshAxis::context, MeshAxis::data});
  own_ = static_cast<size_t>(std::find(all.begin(), all.end(), context.groups.rank()) - all.begin());
  for (const TensorSpec& tensor : context.parameters.spec().tensors)
    own_experts_ = std::max(own_experts_, (tensor.expert + 1) / holders_[own_].experts.size);
  std::stable_sort(matrices_.begin(), matrices_.end(),
                   [](const BlockMatrix& a, const BlockMatrix& b) { return work_of(a) > work_of(b); });
  for (const BlockMatrix& matrix : matrices_) {
    most_elements_ = std::max(most_elements_, matrix.count());
    most_square_ = std::max(most_square_, smaller_side_squared(matrix));
  }
  const int64_t ranks = std::ssize(holders_);
  const bool holds_all = !context.parameters.sharding().cuts_state();
  for (int64_t i = 0; i < std::ssize(matrices_); ++i) {
    if (i % ranks == 0) {
      const std::vector<PeerPart> none(ranks);
      rounds_.push_back({-1, none, none, none, none, {}, {}});
    }
    Round& round = rounds_.back();
    const int64_t turn = i % ranks;
    const auto owner = static_cast<size_t>(std::ssize(rounds_) % 2 == 1 ? turn : ranks - 1 - turn);
    const BlockMatrix& matrix = matrices_[i];
    const MatrixPart part = part_of(matrix, holders_[own_]);
    const PeerPart range{part.count > 0 ? in_gradients(matrix, part) : 0, part.count};
    // If every replica holds all elements, the owner takes them from ranks with its own number.
    const bool is_near = replica(matrix, holders_[owner]) == replica(matrix, holders_[own_]);
    if (part.owned && (!holds_all || is_near)) round.sent[owner] = range;
    round.received_back[owner] = range;
    if (owner == own_) {
      round.own = i;
      add_own(round);
    }
  }
}

bool MatrixExchange::is_spread(int64_t tensor) const {
  const int64_t unit = context_.parameters.spec().tensors[static_cast<size_t>(tensor)].unit;
  return context_.parameters.layout().units[unit].replicas == ReplicaGroup::expert_data;
}

TensorShard MatrixExchange::shard_on(int64_t tensor, const Holder& holder) const {
  const TensorSpec& spec = context_.parameters.spec().tensors[static_cast<size_t>(tensor)];
  if (!is_spread(tensor)) return shard_of(spec, {context_.groups.on_tensor_axis().size, holder.tensor});
  if (spec.expert / own_experts_ != holder.experts.rank) return {};
  return shard_of(spec, holder.experts.tensor);
}

size_t MatrixExchange::own_like(int64_t tensor, const Holder& holder) const {
  if (!is_spread(tensor)) return static_cast<size_t>(tensor);
  return static_cast<size_t>(tensor + (holders_[own_].experts.rank - holder.experts.rank) * own_experts_);
}

MatrixPart MatrixExchange::part_of(const BlockMatrix& matrix, const Holder& holder) const {
  const ParameterStore& parameters = context_.parameters;
  const TensorShard shard = shard_on(matrix.tensor, holder);
  MatrixPart part;
  if (shard.boxes.empty()) return part;
  const int64_t unit = parameters.spec().tensors[static_cast<size_t>(matrix.tensor)].unit;
  const UnitRange& range = parameters.layout().units[unit];
  const bool pieces = parameters.sharding().cuts_state();
  const UnitPiece held = pieces ? parameters.piece(unit, replica(matrix, holder)) : UnitPiece{0, range.elements};
  const int64_t in_unit = parameters.layout().segments[own_like(matrix.tensor, holder)].offset - range.offset;
  for (const ShardBox& box : shard.boxes) {
    const int64_t first_row = std::max(box.offset[0], matrix.first_row);
    const int64_t end_row = std::min(box.offset[0] + box.shape[0], matrix.first_row + matrix.rows);
    if (first_row >= end_row) continue;
    const int64_t cols = box.shape[1];
    const int64_t start = in_unit + box.local_offset + (first_row - box.offset[0]) * cols;
    const int64_t from = std::max(held.first, start) - start;
    const int64_t to = std::min(held.end(), start + (end_row - first_row) * cols) - start;
    if (from >= to) continue;
    if (part.count > 0) throw std::logic_error("a rank holds a matrix of a block in two places");
    part = {first_row - matrix.first_row, box.offset[1], cols, from, to - from, start + from, box.owned};
  }
  return part;
}

int64_t MatrixExchange::in_gradients(const BlockMatrix& matrix, const MatrixPart& part) const {
  const ParameterStore& parameters = context_.parameters;
  const int64_t unit = context_.parameters.spec().tensors[matrix.tensor].unit;
  const UpdateRange range = parameters.update_range(unit);
  const auto* const gradients = reinterpret_cast<const float*>(range.gradients);
  return gradients - parameters.summed_gradients().as<const float>() + part.in_unit - range.first;
}

// Adds the transfers of this rank's own matrix from and to its peers. Peers that hold the same elements get them from
// the same range of `parts`.
void MatrixExchange::add_own(Round& round) const {
  const BlockMatrix& matrix = matrices_[round.own];
  const bool holds_all = !context_.parameters.sharding().cuts_state();
  int64_t received = 0, sent = 0;
  const auto key = [](const MatrixPart& part) { return std::tuple(part.row, part.col, part.first, part.count); };
  for (size_t peer = 0; peer < holders_.size(); ++peer) {
    const MatrixPart part = part_of(matrix, holders_[peer]);
    if (part.count == 0) continue;
    if (part.owned && (!holds_all || replica(matrix, holders_[peer]) == replica(matrix, holders_[own_]))) {
      round.gathered.push_back({part, received});
      round.received[peer] = {received, part.count};
      received += part.count;
    }
    const auto same = std::find_if(round.returned.begin(), round.returned.end(),
                                   [&](const GatheredPart& other) { return key(other.part) == key(part); });
    if (same != round.returned.end()) {
      round.sent_back[peer] = {same->at, part.count};
      continue;
    }
    round.returned.push_back({part, sent});
    round.sent_back[peer] = {sent, part.count};
    sent += part.count;
  }
  if (received != matrix.count() || sent != matrix.count())
    throw std::logic_error("the parts of a block's matrix are not the whole");
}

void MatrixExchange::copy_parts(const BlockMatrix& matrix, const std::vector<GatheredPart>& placed, float* whole,
                                float* parts, bool to_whole) const {
  for (const GatheredPart& of : placed) {
    for_each_rows(of.part, [&](int64_t row, int64_t col, int64_t rows, int64_t cols, int64_t at) {
      const Matrix in_whole(whole + row * matrix.cols + col, DType::f32, rows, cols, matrix.cols);
      const Matrix in_parts(parts + of.at + at, DType::f32, rows, cols);
      context_.backend.run(Cast{.from = to_whole ? in_parts : in_whole, .to = to_whole ? in_whole : in_parts});
    });
  }
}

void MatrixExchange::play(int64_t number, std::byte* whole, std::byte* parts,
                          const std::function<void(const BlockMatrix&, const Matrix&)>& work) {
  const Round& round = rounds_[number];
  void* const gradients = context_.parameters.summed_gradients().data;
  const BlockMatrix* const own = round.own < 0 ? nullptr : &matrices_[round.own];
  if (!gathers()) {
    auto* const values = static_cast<float*>(gradients) + round.sent.front().first;
    return work(*own, Matrix(values, DType::f32, own->rows, own->cols));
  }
  Lane& lane = context_.groups.lane(LaneKind::gradients);
  lane.wait(lane.all_to_all_v(group_, gradients, round.sent, parts, round.received, DType::f32));
  if (own != nullptr) {
    auto* const matrix = reinterpret_cast<float*>(whole);
    auto* const exchanged = reinterpret_cast<float*>(parts);
    copy_parts(*own, round.gathered, matrix, exchanged, true);
    work(*own, Matrix(matrix, DType::f32, own->rows, own->cols));
    copy_parts(*own, round.returned, matrix, exchanged, false);
  }
  lane.wait(lane.all_to_all_v(group_, parts, round.sent_back, gradients, round.received_back, DType::f32));
}

}  // namespace gptrain::optim
