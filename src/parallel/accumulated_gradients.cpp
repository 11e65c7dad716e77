#include "parallel/accumulated_gradients.h"

#include <algorithm>

#include "model/record.h"
#include "model/spec/tensor_key.h"

namespace gptrain::inline parallel {
namespace {

// Returns the use that the roundings of a tensor's gradients draw random bits for. Two stages with a tied table each
// round a sum of their own, and these are added: with equal random bits their errors would not be independent.
RandomUse rounding_of(const TensorSpec& tensor, const UnitRange& unit, const ShardBox& box) {
  const auto is_tied = [](const Reduction& sum) { return sum.group == ReductionGroup::tied; };
  const bool two_have_it =
      tensor.split == Split::vocabulary && std::any_of(unit.reductions.begin(), unit.reductions.end(), is_tied);
  return two_have_it && !box.owned ? RandomUse::tied_gradient_rounding : RandomUse::gradient_rounding;
}

// Adds the segments of elements [first, first + elements) of the unit.
void add_segments(const ParameterStore& parameters, uint64_t seed, int64_t unit, int64_t first, int64_t elements,
                  std::vector<KeptSegment>& segments) {
  if (elements == 0) return;
  const ParameterLayout& layout = parameters.layout();
  const UnitRange& range = layout.units[unit];
  for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
    const TensorSpec& tensor = parameters.spec().tensors[i];
    for (const ShardBox& box : parameters.shards()[i].boxes) {
      const int64_t in_unit = layout.segments[i].offset - range.offset + box.local_offset;
      const int64_t from = std::max(first, in_unit);
      const int64_t to = std::min(first + elements, in_unit + box.count());
      if (from < to)
        segments.push_back({.offset = from - first,
                            .count = to - from,
                            .key = tensor_key(tensor, seed, rounding_of(tensor, range, box)),
                            .map = index_map(tensor, box, from - in_unit)});
    }
  }
}

}  // namespace

// Counts the segments that the constructor makes: of summed_, and with ZeRO 1 of own_.
int64_t AccumulatedGradients::table_bytes(const ParameterStore& parameters) {
  const Sharding& sharding = parameters.sharding();
  if (sharding.gradients == DType::f32) return 0;
  std::vector<KeptSegment> segments;
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit) {
    const UpdateRange updated = parameters.update_range(unit);
    add_segments(parameters, 0, unit, updated.first, updated.elements, segments);
    if (sharding.cuts_state() && !sharding.cuts_gradients())
      add_segments(parameters, 0, unit, 0, parameters.layout().units[unit].elements, segments);
  }
  return align_up(static_cast<int64_t>(segments.size() * sizeof(KeptSegment)));
}

AccumulatedGradients::AccumulatedGradients(const ParameterStore& parameters, uint64_t seed, int64_t micro_batches,
                                           std::byte* table, const StepState* state, Backend& backend)
    : sharding_(parameters.sharding()),
      micro_batches_(micro_batches),
      segments_(reinterpret_cast<const KeptSegment*>(table)),
      state_(state),
      backend_(backend) {
  std::vector<KeptSegment> segments;
  const auto range_of = [&](int64_t unit, int64_t first, int64_t elements, std::byte* sums) {
    const size_t first_segment = segments.size();
    add_segments(parameters, seed, unit, first, elements, segments);
    return Range{.first = first,
                 .elements = elements,
                 .sums = sums,
                 .first_segment = first_segment,
                 .end_segment = segments.size(),
                 .first_draw = parameters.replica_rank(unit).rank * micro_batches};
  };
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit) {
    const UpdateRange updated = parameters.update_range(unit);
    std::byte* const sums =
        sharding_.gradients_away ? static_cast<std::byte*>(parameters.gradients_piece(unit).data) : updated.gradients;
    summed_.push_back(range_of(unit, updated.first, updated.elements, sums));
    if (!sharding_.cuts_state()) own_.push_back(summed_.back());
    if (sharding_.cuts_state() && !sharding_.cuts_gradients())
      own_.push_back(range_of(unit, 0, parameters.layout().units[unit].elements,
                              updated.gradients - updated.first * dtype_bytes(sharding_.gradients)));
  }
  backend.upload(table, segments.data(), static_cast<int64_t>(segments.size() * sizeof(KeptSegment)));
}

void AccumulatedGradients::add(const Range& range, std::byte* whole, bool accumulate, int64_t draw) const {
  if (range.first_segment == range.end_segment) return;
  backend_.run(
      KeepGradients{.segments = segments_ + range.first_segment,
                    .num_segments = static_cast<int64_t>(range.end_segment - range.first_segment),
                    .state = state_,
                    .gradients = Matrix(whole + range.first * dtype_bytes(DType::f32), DType::f32, 1, range.elements),
                    .sums = Matrix(range.sums, sharding_.gradients, 1, range.elements),
                    .accumulate = accumulate,
                    .draw = static_cast<uint32_t>(draw)});
}

void AccumulatedGradients::add_own(int64_t unit, std::byte* whole, int64_t micro_batch) const {
  const Range& own = own_[unit];
  add(own, whole, micro_batch > 0, own.first_draw + micro_batch);
}

void AccumulatedGradients::add_accumulated_to(int64_t unit, std::byte* whole) const {
  if (sharding_.cuts_gradients() || micro_batches_ == 1) return;
  const Range& own = own_[unit];
  if (own.elements > 0)
    backend_.run(Add{.from = Matrix(own.sums, sharding_.gradients, 1, own.elements),
                     .to = Matrix(whole, DType::f32, 1, own.elements)});
}

void AccumulatedGradients::add_sum(int64_t unit, std::byte* whole, int64_t micro_batch) const {
  add(summed_[unit], whole, sharding_.cuts_gradients() && micro_batch > 0, micro_batch);
}

}  // namespace gptrain::parallel
