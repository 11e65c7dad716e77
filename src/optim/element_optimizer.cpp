#include "optim/element_optimizer.h"

#include <algorithm>
#include <array>

#include "model/record.h"
#include "model/spec/tensor_key.h"
#include "parallel/island_average.h"

namespace gptrain::inline optim {
namespace {

struct Segments {
  std::vector<UpdateSegment> all;
  std::vector<int64_t> first;  // see ElementUpdates::first_segment_
};

// Groups of a unit's tensors, in the order of the layout.
enum class TensorOrder : uint8_t { norms, others, last };
constexpr std::array all_tensor_orders = {TensorOrder::norms, TensorOrder::others, TensorOrder::last};
constexpr size_t num_unit_tensors = all_tensor_orders.size();

TensorOrder kind_of(const TensorSpec& tensor, UnitEnd end) {
  if (tensor.norm_use != NormUse::no_norm) return TensorOrder::norms;
  return comes_last(tensor, end) ? TensorOrder::last : TensorOrder::others;
}

// RETURNS the elements of this rank's part of the unit before the tensors of UnitEnd.
int64_t elements_before_last(const ParameterStore& parameters, int64_t unit) {
  const UpdateRange range = parameters.update_range(unit);
  const int64_t before = parameters.layout().units[unit].before_last;
  return std::clamp<int64_t>(before - range.first, 0, range.elements);
}

// Adds the segments of one group of tensors. Offsets count from the start of this rank's part of the unit, or, if norms
// or the tensors of UnitEnd are updated separately, from the start of the tensors that are updated together.
void add_segments(const ParameterStore& parameters, uint64_t seed, int64_t unit, TensorOrder kind,
                  bool last_is_separate, const PartNumbers& numbers, std::vector<UpdateSegment>& segments) {
  const ParameterLayout& layout = parameters.layout();
  const UnitRange& range = layout.units[unit];
  const UpdateRange updated = parameters.update_range(unit);
  if (updated.elements == 0) return;  // a unit of another stage
  int64_t elements_before = 0;
  if (parameters.sharding().pure && kind != TensorOrder::norms) elements_before = parameters.norm_piece(unit).count;
  if (last_is_separate && kind == TensorOrder::last) elements_before = elements_before_last(parameters, unit);
  for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
    const TensorSpec& tensor = parameters.spec().tensors[i];
    if (kind_of(tensor, layout.end) != kind) continue;
    const int64_t start = layout.segments[i].offset - range.offset;
    // Elements outside boxes are padding, whose weights and gradients stay zero without an update.
    for (const ShardBox& whole : parameters.shards()[i].boxes) {
      for (const auto& [box, part] : numbers.cut(tensor, i, whole)) {
        const int64_t in_unit = start + box.local_offset;
        const int64_t from = std::max(updated.first, in_unit);
        const int64_t to = std::min(updated.first + updated.elements, in_unit + box.count());
        if (from < to)
          segments.push_back({.offset = from - updated.first - elements_before,
                              .count = to - from,
                              .decay = tensor.decay ? 1 : 0,
                              .rate_factor = tensor.rate_factor,
                              .key = tensor_key(tensor, seed, RandomUse::update_rounding),
                              .map = index_map(tensor, box, from - in_unit),
                              .tensor = part});
      }
    }
  }
}

Segments make_segments(const ParameterStore& parameters, uint64_t seed, bool last_is_separate, SummedParts summed) {
  Segments segments;
  const PartNumbers numbers(parameters.spec(), summed);
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit) {
    for (const TensorOrder kind : all_tensor_orders) {
      segments.first.push_back(static_cast<int64_t>(segments.all.size()));
      add_segments(parameters, seed, unit, kind, last_is_separate, numbers, segments.all);
    }
  }
  segments.first.push_back(static_cast<int64_t>(segments.all.size()));
  return segments;
}

int64_t bytes_of(const Segments& segments) {
  return align_up(static_cast<int64_t>(segments.all.size() * sizeof(UpdateSegment)));
}

}  // namespace

PartNumbers::PartNumbers(const ModelSpec& spec, SummedParts summed) : summed_(summed), first_{0} {
  for (const TensorSpec& tensor : spec.tensors)
    first_.push_back(first_.back() + (summed == SummedParts::parts ? tensor.num_parts() : 1));
}

std::vector<PartNumbers::NumberedBox> PartNumbers::cut(const TensorSpec& tensor, int64_t index,
                                                       const ShardBox& box) const {
  if (summed_ == SummedParts::tensors || tensor.num_parts() == 1) return {{box, first(index)}};
  std::vector<NumberedBox> boxes;
  const int64_t row_elements = box.count() / box.shape[0];
  int64_t part = first(index), first_row = 0;
  for (const Section& section : tensor.sections) {
    const int64_t from = std::max(box.offset[0], first_row);
    const int64_t to = std::min(box.offset[0] + box.shape[0], first_row + section.rows);
    if (from < to) {
      NumberedBox own{box, part};
      own.box.offset[0] = from;
      own.box.shape[0] = to - from;
      own.box.local_offset += (from - box.offset[0]) * row_elements;
      boxes.push_back(std::move(own));
    }
    first_row += section.rows;
    ++part;
  }
  return boxes;
}

int64_t element_table_bytes(const ParameterStore& parameters) {
  return bytes_of(make_segments(parameters, 0, false, SummedParts::tensors));
}

int64_t part_table_bytes(const ParameterStore& parameters) {
  return bytes_of(make_segments(parameters, 0, false, SummedParts::parts));
}

ElementUpdates::ElementUpdates(const UpdateContext& context, uint64_t seed, std::byte* tables, bool last_is_separate,
                               SummedParts summed)
    : context_(context), segments_(reinterpret_cast<const UpdateSegment*>(tables)) {
  Segments segments = make_segments(context.parameters, seed, last_is_separate, summed);
  context.backend.upload(tables, segments.all.data(),
                         static_cast<int64_t>(segments.all.size() * sizeof(UpdateSegment)));
  first_segment_ = std::move(segments.first);
}

ElementUpdate unit_operands(const UpdateContext& context, int64_t unit, int64_t first, int64_t elements) {
  const ParameterStore& parameters = context.parameters;
  const auto row = [&](void* data, DType dtype) {
    return data == nullptr ? Matrix{}
                           : Matrix(static_cast<std::byte*>(data) + first * dtype_bytes(dtype), dtype, 1, elements);
  };
  const UpdateRange range = parameters.update_range(unit);
  ElementUpdate update{.state = context.state,
                       .gradients = row(range.gradients, parameters.sharding().gradients),
                       .master = row(range.master, DType::f32),
                       .columns = {},
                       .weights = row(range.weights, parameters.sharding().compute)};
  size_t next = 0;
  for (size_t i = 0; i < parameters.columns().size(); ++i) {
    if (parameters.columns()[i].name == outer_momentum_column) continue;  // no update reads it
    if (!is_of_last(parameters.columns()[i]) && !is_factored(parameters.columns()[i]))
      update.columns.at(next++) = row(parameters.column(i, unit), parameters.columns()[i].dtype);
  }
  return update;
}

ElementUpdate ElementUpdates::operands(int64_t unit, int64_t first, int64_t elements, int64_t first_segment,
                                       int64_t end_segment) const {
  ElementUpdate update = unit_operands(context_, unit, first, elements);
  update.segments = segments_ + first_segment;
  update.num_segments = end_segment - first_segment;
  return update;
}

void ElementUpdates::update_first(int64_t unit, int64_t elements, int64_t end_segment,
                                  const std::function<void(const ElementUpdate&)>& run) const {
  const int64_t* const segments = first_segment_.data() + num_unit_tensors * static_cast<size_t>(unit);
  if (!context_.parameters.sharding().pure) {
    if (elements > 0) run(operands(unit, 0, elements, segments[0], end_segment));
    return;
  }
  const NormPiece norms = context_.parameters.norm_piece(unit);
  if (norms.count > 0) {
    ElementUpdate update = operands(unit, 0, norms.count, segments[0], segments[1]);
    update.master = Matrix(norms.master, DType::f32, 1, norms.count);
    update.weights = {};
    run(update);
  }
  if (norms.count < elements) run(operands(unit, norms.count, elements - norms.count, segments[1], end_segment));
}

void ElementUpdates::update(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const {
  const int64_t end_segment = first_segment_[num_unit_tensors * static_cast<size_t>(unit + 1)];
  update_first(unit, context_.parameters.update_range(unit).elements, end_segment, run);
}

void ElementUpdates::update_before_last(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const {
  const int64_t end_segment = first_segment_[num_unit_tensors * static_cast<size_t>(unit) + 2];
  update_first(unit, elements_before_last(context_.parameters, unit), end_segment, run);
}

void ElementUpdates::update_last(int64_t unit, const std::function<void(const ElementUpdate&)>& run) const {
  const ParameterStore& parameters = context_.parameters;
  const int64_t first = elements_before_last(parameters, unit);
  const int64_t elements = parameters.update_range(unit).elements - first;
  if (elements == 0) return;
  const int64_t* const segments = first_segment_.data() + num_unit_tensors * static_cast<size_t>(unit);
  ElementUpdate update = operands(unit, first, elements, segments[2], segments[3]);
  size_t next = 0;
  for (const StateColumn& column : parameters.columns()) {
    if (is_of_last(column) || is_factored(column)) continue;
    if (column.granularity != StateGranularity::element) update.columns[next] = {};
    ++next;
  }
  run(update);
}

}  // namespace gptrain::optim
