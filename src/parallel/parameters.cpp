#include "parallel/parameters.h"

#include <algorithm>
#include <utility>

#include "model/record.h"
#include "parallel/coded_weights.h"

namespace gptrain::inline parallel {
namespace {

// Returns by unit the number of norm elements in the units before, then the number in all units.
std::vector<int64_t> norm_offsets(const ParameterLayout& layout) {
  std::vector<int64_t> offsets{0};
  for (const UnitRange& unit : layout.units) offsets.push_back(offsets.back() + unit.norm_elements);
  return offsets;
}

// Returns all units, experts behind their block: so updates take them, and gathers.
std::vector<int64_t> update_order(const ModelSpec& spec) {
  std::vector<int64_t> order;
  for (size_t unit = 0; unit < spec.units.size(); ++unit) {
    if (spec.units[unit].kind == UnitKind::experts) continue;
    order.push_back(static_cast<int64_t>(unit));
    if (spec.units[unit].experts >= 0) order.push_back(spec.units[unit].experts);
  }
  return order;
}

}  // namespace

IndexMap index_map(const TensorSpec& tensor, const ShardBox& box, int64_t first) {
  if (tensor.shape.size() == 1) return {.origin = box.offset[0], .first = first};
  const int64_t stride = tensor.shape[1];
  return {.origin = box.offset[0] * stride + box.offset[1], .first = first, .cols = box.shape[1], .stride = stride};
}

int64_t StateSlice::column_bytes(const StateColumn& column) const {
  if (column.granularity == StateGranularity::block) return num_blocks * dtype_bytes(column.dtype);
  if (is_factored(column)) return factored_values(column, rows, cols) * dtype_bytes(column.dtype);
  return gptrain::column_bytes(column, count());
}

ReplicaCounts Sharding::replica_counts() const {
  ReplicaCounts counts{};
  for (size_t group = 0; group < num_replica_groups; ++group) counts[group] = replica_ranks[group].size;
  return counts;
}

ParameterBytes parameter_bytes(const ParameterLayout& layout, const Sharding& sharding, const StateColumns& columns) {
  const int64_t compute_bytes = dtype_bytes(sharding.compute);
  constexpr int64_t f32_bytes = dtype_bytes(DType::f32);
  const int64_t norms = sharding.has_f32_norms() ? norm_offsets(layout).back() : 0;
  const int64_t weights = sharding.weights_away() ? 0 : layout.held_elements(sharding.gathers_weights());
  const int64_t updated =
      sharding.separate_updated_weights ? layout.held_elements(sharding.cuts_state()) * compute_bytes : 0;
  const int64_t gradients = layout.held_elements(sharding.cuts_gradients()) * dtype_bytes(sharding.gradients);
  return {.weights = weights * compute_bytes + norms * f32_bytes,
          .updated = updated + (sharding.has_updated_norms() ? norms * f32_bytes : 0),
          .gradients = sharding.gradients_away    ? 0
                       : sharding.updates_delayed ? 2 * gradients
                                                  : gradients,
          .master = sharding.has_master() ? layout.held_elements(sharding.cuts_state()) * f32_bytes : 0,
          .state = StateLayout(columns, layout, {.in_pieces = sharding.cuts_state()}, {}).buffer_bytes()};
}

int64_t code_bytes_behind(const UnitRange& range, const Sharding& sharding) {
  return sharding.codes_weights_of(range) ? CodedWeights::bytes_behind(range.elements) : 0;
}

UnitBufferBytes unit_buffer_bytes(const UnitRange& range, const Sharding& sharding) {
  const auto bytes = [&](bool is_there, DType dtype) {
    return is_there ? align_up(range.elements * dtype_bytes(dtype)) : 0;
  };
  return {.weights = bytes(sharding.gathers_weights(), sharding.compute) + code_bytes_behind(range, sharding),
          .whole_gradients = bytes(sharding.has_gradient_buckets(), DType::f32),
          .narrow_gradients = bytes(sharding.narrows_gradients(range.replicas), sharding.reduce)};
}

ParameterStore::ParameterStore(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                               const ParameterLayout& layout, const Sharding& sharding, const ParameterBuffers& buffers,
                               StateColumns columns, const std::vector<MemoryPlace>& state_places)
    : spec_(spec),
      shards_(shards),
      layout_(layout),
      sharding_(sharding),
      buffers_(buffers),
      columns_(std::move(columns)),
      state_layout_(columns_, layout,
                    {.in_pieces = sharding.cuts_state(),
                     .has_masters = sharding.has_master(),
                     .weight_bytes = sharding.weights_away() ? dtype_bytes(sharding.compute) : 0,
                     .gradient_bytes = sharding.gradients_away ? dtype_bytes(sharding.gradients) : 0,
                     .order = update_order(spec),
                     .most_landed = sharding.landed_units},
                    state_places) {
  const auto slots = [&](AwayPart part) {
    std::vector<int64_t> bytes;
    for (int64_t unit = 0; unit < num_parameter_units(); ++unit) bytes.push_back(state_layout_.part_bytes(part, unit));
    const auto is_head = [](const Unit& unit) { return unit.kind == UnitKind::head; };
    return UnitSlots(bytes, std::find_if(spec.units.begin(), spec.units.end(), is_head) - spec.units.begin());
  };
  weight_slots_ = slots(AwayPart::weights);
  gradient_slots_ = slots(AwayPart::gradients);
  norm_offset_ = norm_offsets(layout);
  for (const UnitRange& unit : layout.units)
    zeros_.resize(std::max(zeros_.size(), static_cast<size_t>(unit.norm_elements)));
  staged_units_ = StagedUnits(staged_parts(), update_order(spec));
}

// Returns by unit the bytes that its update reads and writes in the memory of the ops.
std::vector<StagedParts> ParameterStore::staged_parts() const {
  std::vector<StagedParts> parts;
  for (int64_t unit = 0; unit < num_parameter_units(); ++unit) {
    const auto [first, held] = updated_piece(unit);
    const int64_t elements = state_layout_.is_away(unit) ? held : 0;
    const int64_t norms = std::clamp<int64_t>(range(unit).norm_elements - first, 0, elements);
    const bool separate_norms = sharding_.masters_away || sharding_.pure;
    parts.push_back({.gradients = sharding_.gradients_away ? 0 : elements * dtype_bytes(sharding_.gradients),
                     .weights = sharding_.weights_away() ? 0 : elements * dtype_bytes(sharding_.compute),
                     .norms = separate_norms ? norms * dtype_bytes(DType::f32) : 0});
  }
  return parts;
}

bool ParameterStore::updates_at_home() const {
  for (int64_t unit = 0; unit < num_parameter_units(); ++unit)
    if (range(unit).elements > 0 && !state_layout_.is_away(unit)) return true;
  return false;
}

int64_t ParameterStore::offset_of_piece(int64_t unit, bool pieces_only) const {
  return pieces_only ? range(unit).piece_offset : range(unit).offset + piece(unit).first;
}

UnitParameters ParameterStore::whole(int64_t unit, std::byte* gathered, std::byte* whole_gradients) const {
  const int64_t compute_bytes = dtype_bytes(sharding_.compute);
  constexpr int64_t f32_bytes = dtype_bytes(DType::f32);
  UnitParameters whole{
      .weights = sharding_.gathers_weights() ? gathered : buffers_.weights + range(unit).offset * compute_bytes,
      .norms = nullptr,
      .gradients =
          sharding_.has_gradient_buckets() ? whole_gradients : buffers_.gradients + range(unit).offset * f32_bytes};
  if (sharding_.compute == DType::f32) {
    whole.norms = whole.weights;
  } else if (!sharding_.has_f32_norms()) {
    whole.norms = buffers_.master + state_layout_.master_offset(unit);
  } else {
    const int64_t held = sharding_.weights_away() ? weight_slots_.bytes()
                                                  : layout_.held_elements(sharding_.gathers_weights()) * compute_bytes;
    whole.norms = buffers_.weights + held + norm_offset_[unit] * f32_bytes;
  }
  return whole;
}

int64_t ParameterStore::f32_norm_elements(int64_t unit) const {
  return sharding_.has_f32_norms() ? range(unit).norm_elements : 0;
}

NormPiece ParameterStore::norm_piece(int64_t unit) const {
  const UpdateRange held = update_range(unit);
  const int64_t end = std::min(held.first + held.elements, range(unit).norm_elements);
  float* const master = sharding_.pure ? updated_norms(unit) : held.master;
  return {held.first, std::max<int64_t>(end - held.first, 0), master};
}

float* ParameterStore::updated_norms(int64_t unit) const {
  if (buffers_.staged != nullptr) return reinterpret_cast<float*>(staged_units_.norms(buffers_.staged, unit));
  const int64_t first = update_range(unit).first;
  if (buffers_.updated == nullptr || !sharding_.has_updated_norms())
    return reinterpret_cast<float*>(whole(unit).norms) + first;
  const int64_t weights = layout_.held_elements(sharding_.cuts_state()) * dtype_bytes(sharding_.compute);
  return reinterpret_cast<float*>(buffers_.updated + weights) + norm_offset_[unit] + first;
}

std::byte* ParameterStore::weights_piece(int64_t unit) const {
  if (sharding_.weights_away()) return buffers_.weights + weight_slots_.offset(unit);
  return updated_weights(unit, piece(unit).first);
}

std::byte* ParameterStore::updated_weights(int64_t unit, int64_t first) const {
  if (sharding_.weights_away())
    return landing(unit, AwayPart::weights) + (first - piece(unit).first) * dtype_bytes(sharding_.compute);
  // `first` is then the start of update_range.
  if (buffers_.staged != nullptr) return staged_units_.weights(buffers_.staged, unit);
  const bool has_updated = buffers_.updated != nullptr;
  const bool pieces_only = has_updated ? sharding_.cuts_state() : sharding_.gathers_weights();
  const int64_t start = offset_of_piece(unit, pieces_only) + first - piece(unit).first;
  return (has_updated ? buffers_.updated : buffers_.weights) + start * dtype_bytes(sharding_.compute);
}

int64_t ParameterStore::offset_in_summed(int64_t unit) const {
  return offset_of_piece(unit, sharding_.cuts_gradients());
}

Matrix ParameterStore::gradients_piece(int64_t unit) const {
  if (sharding_.gradients_away)
    return {buffers_.gradients + gradient_slots_.offset(unit), sharding_.gradients, 1, piece_elements(unit)};
  return summed_gradients().column_range(offset_in_summed(unit), piece_elements(unit));
}

Matrix ParameterStore::summed_gradients() const {
  return {buffers_.gradients, sharding_.gradients, 1, layout_.held_elements(sharding_.cuts_gradients())};
}

Matrix ParameterStore::gradients_of_range(int64_t unit) const {
  const bool whole_unit = !sharding_.cuts_state();
  return summed_gradients().column_range(whole_unit ? range(unit).offset : offset_in_summed(unit),
                                         whole_unit ? range(unit).elements : piece_elements(unit));
}

UpdateRange ParameterStore::update_range(int64_t unit) const {
  const Matrix summed = sharding_.gradients_away ? Matrix{} : gradients_of_range(unit);
  auto* const gradients = static_cast<std::byte*>(summed.data);
  const bool has_master = sharding_.has_master();
  const bool is_master = sharding_.compute == DType::f32;
  const UnitPiece updated = updated_piece(unit);
  std::byte* const weights = updated_weights(unit, updated.first);
  auto* const masters = reinterpret_cast<float*>(
      state_layout_.is_away(unit) ? landing(unit) : buffers_.master + state_layout_.master_offset(unit));
  return {.first = updated.first,
          .elements = updated.elements,
          .gradients = sharding_.gradients_away     ? landing(unit, AwayPart::gradients)
                       : buffers_.staged != nullptr ? staged_units_.gradients(buffers_.staged, unit)
                       : sharding_.updates_delayed  ? gradients + summed_gradients().bytes()
                                                    : gradients,
          .master = has_master  ? masters
                    : is_master ? reinterpret_cast<float*>(weights)
                                : nullptr,
          .weights = is_master ? nullptr : weights};
}

std::byte* ParameterStore::column(size_t column, int64_t unit) const {
  const int64_t offset = state_layout_.offset(column, unit);
  return offset < state_layout_.home_bytes() ? buffers_.state + offset
                                             : landing(unit) + (offset - state_layout_.landing_offset(unit));
}

std::byte* ParameterStore::factored_column(size_t column, size_t tensor) const {
  const int64_t unit = spec_.tensors[tensor].unit;
  int64_t before = 0;
  for (auto i = static_cast<size_t>(range(unit).first_tensor); i < tensor; ++i) {
    if (spec_.tensors[i].is_matrix())
      before += element_count(stored_shape(columns_[column], spec_.tensors[i], shards_[i]));
  }
  return this->column(column, unit) + column_bytes(columns_[column], before);
}

template <typename T>
T* ParameterStore::saved_address(int64_t unit, T* value) const {
  if (!state_layout_.is_away(unit)) return value;
  const auto [offset, bytes] = state_layout_.range_away(unit);
  const auto in_range = reinterpret_cast<uintptr_t>(value) - reinterpret_cast<uintptr_t>(landing(unit));
  if (in_range >= static_cast<uintptr_t>(bytes)) return value;
  return reinterpret_cast<T*>(away_addresses + static_cast<uintptr_t>(offset) + in_range);
}

bool ParameterStore::is_narrow(size_t tensor) const {
  return sharding_.pure && spec_.tensors[tensor].norm_use == NormUse::no_norm;
}

int64_t ParameterStore::held_before_last(int64_t unit) const {
  const UpdateRange held = update_range(unit);
  return std::clamp<int64_t>(range(unit).before_last - held.first, 0, held.elements);
}

ParameterStore::HeldBlocks ParameterStore::held_blocks(size_t tensor, bool piece_only) const {
  const TensorShard& shard = shards_[tensor];
  if (layout_.end != UnitEnd::block_state || !spec_.tensors[tensor].has_block_state() || shard.boxes.empty()) return {};
  const int64_t unit = spec_.tensors[tensor].unit;
  const UpdateRange held = update_range(unit);
  const int64_t start = layout_.segments[tensor].offset - range(unit).offset;
  const int64_t end = start + shard.boxes.back().local_offset + shard.boxes.back().count();
  const UnitPiece counted = piece_only ? piece(unit) : UnitPiece{held.first, held.elements};
  const int64_t from = std::max(counted.first, start);
  const int64_t to = std::min(counted.end(), end);
  if (from >= to) return {};
  return {(from - start) / state_block, (to - from + state_block - 1) / state_block,
          (from - held.first - held_before_last(unit)) / state_block};
}

template <typename Body>
void ParameterStore::for_each_box(bool written_only, const Body& body) const {
  for (size_t tensor = 0; tensor < spec_.tensors.size(); ++tensor) {
    const TensorShard& shard = shards_[tensor];
    const int64_t unit = spec_.tensors[tensor].unit;
    const bool pieces = written_only || sharding_.cuts_state();
    const UnitPiece taken = pieces ? piece(unit) : UnitPiece{0, range(unit).elements};
    const int64_t held_first = sharding_.cuts_state() ? piece(unit).first : 0;
    const int64_t in_unit = layout_.segments[tensor].offset - range(unit).offset;
    HeldBlocks blocks = written_only && !shard.any_owned() ? HeldBlocks{} : held_blocks(tensor, pieces);
    for (const ShardBox& box : shard.boxes) {
      const int64_t start = in_unit + box.local_offset;
      const int64_t from = std::max(taken.first, start) - start;
      const int64_t to = std::min(taken.end(), start + box.count()) - start;
      if (from >= to || (written_only && !box.owned)) continue;
      for_each_part(box, from, to, start - held_first,
                    [&](auto... part) { body(tensor, part..., std::exchange(blocks, {})); });
    }
    const std::vector<int64_t> none(spec_.tensors[tensor].shape.size(), 0);
    if (blocks.count > 0) body(tensor, none, none, in_unit + shard.boxes.front().local_offset - held_first, blocks);
  }
}

template <typename Body>
void ParameterStore::for_each_factored(bool written_only, const Body& body) const {
  if (std::none_of(columns_.begin(), columns_.end(), is_factored)) return;
  for (size_t tensor = 0; tensor < spec_.tensors.size(); ++tensor) {
    const int64_t unit = spec_.tensors[tensor].unit;
    if (!spec_.tensors[tensor].is_matrix() || range(unit).elements == 0) continue;
    if (written_only) {
      const std::vector<ShardBox>& boxes = shards_[tensor].boxes;
      if (boxes.empty() || !boxes[0].owned || boxes[0].offset[0] != 0 || boxes[0].offset[1] != 0) continue;
      const int64_t first = layout_.segments[tensor].offset - range(unit).offset + boxes[0].local_offset;
      if (first < piece(unit).first || first >= piece(unit).end()) continue;
    }
    body(tensor);
  }
}

bool ParameterStore::is_weight_on_disk(size_t tensor) const {
  const bool is_away = sharding_.weights_away() && (!sharding_.pure || is_narrow(tensor));
  return state_layout_.lands(spec_.tensors[tensor].unit) && (sharding_.has_master() || is_away);
}

bool ParameterStore::is_on_disk(const StateColumn& column, int64_t unit) const {
  return state_layout_.lands(unit) && !stays_home(column);
}

int64_t ParameterStore::snapshot_bytes(bool clones) const {
  int64_t bytes = 0;
  for_each_factored(true, [&](size_t tensor) {
    for (const StateColumn& column : columns_) {
      if (is_factored(column))
        bytes +=
            align_up(column_bytes(column, element_count(stored_shape(column, spec_.tensors[tensor], shards_[tensor]))));
    }
  });
  for_each_box(true, [&](size_t tensor, const std::vector<int64_t>&, const std::vector<int64_t>& shape, int64_t,
                         const HeldBlocks& blocks) {
    StateSlice piece;
    piece.shape = shape;
    piece.num_blocks = blocks.count;
    if (!clones || !is_weight_on_disk(tensor))
      bytes += align_up(piece.count() * dtype_bytes(is_narrow(tensor) ? DType::bf16 : DType::f32));
    for (const StateColumn& column : columns_) {
      const bool is_copied = !clones || !is_on_disk(column, spec_.tensors[tensor].unit);
      if (is_copied && has_values(column, spec_.tensors[tensor])) bytes += align_up(piece.column_bytes(column));
    }
  });
  return bytes;
}

std::vector<StateSlice> ParameterStore::state(bool written_only) const {
  std::vector<StateSlice> state;
  for_each_box(written_only, [&](size_t tensor, std::vector<int64_t> offset, std::vector<int64_t> shape, int64_t at,
                                 const HeldBlocks& blocks) {
    const int64_t unit = spec_.tensors[tensor].unit;
    const UpdateRange held = update_range(unit);
    StateSlice piece;
    piece.tensor = static_cast<int64_t>(tensor);
    piece.offset = std::move(offset);
    piece.shape = std::move(shape);
    piece.first_block = shards_[tensor].blocks_first + blocks.first;
    piece.num_blocks = blocks.count;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const StateColumn& column = columns_[i];
      std::byte* address = nullptr;
      if (has_values(column, spec_.tensors[tensor]) && piece.column_bytes(column) > 0) {
        const bool of_blocks = column.granularity == StateGranularity::block;
        const int64_t before = of_blocks ? blocks.in_columns : is_of_last(column) ? at - held_before_last(unit) : at;
        address = saved_address(unit, this->column(i, unit) + before * dtype_bytes(column.dtype));
      }
      piece.columns.push_back(address);
    }
    if (piece.count() > 0) {
      const bool narrow = is_narrow(tensor);
      float* const master = sharding_.pure ? norm_piece(unit).master : held.master;
      piece.weight = narrow ? nullptr : saved_address(unit, master + at);
      piece.narrow_weight = narrow ? saved_address(unit, reinterpret_cast<bf16*>(held.weights) + at) : nullptr;
      const bool at_home = !sharding_.gradients_away;  // else held.gradients is memory for updates only
      if (at_home && sharding_.gradients == DType::f32) {
        piece.gradient = reinterpret_cast<float*>(held.gradients) + at;
      } else if (at_home) {
        piece.narrow_gradient = reinterpret_cast<bf16*>(held.gradients) + at;
      }
    }
    state.push_back(std::move(piece));
  });
  for_each_factored(written_only, [&](size_t tensor) {
    const TensorSpec& spec = spec_.tensors[tensor];
    StateSlice piece;
    piece.tensor = static_cast<int64_t>(tensor);
    piece.offset = piece.shape = {0, 0};
    piece.rows = spec.shape[0];
    piece.cols = spec.num_parts() * spec.shape[1];
    for (size_t i = 0; i < columns_.size(); ++i)
      piece.columns.push_back(is_factored(columns_[i]) ? factored_column(i, tensor) : nullptr);
    state.push_back(std::move(piece));
  });
  return state;
}

}  // namespace gptrain::parallel
