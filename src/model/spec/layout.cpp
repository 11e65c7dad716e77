#include "model/spec/layout.h"

#include "base/dynamic_map.h"

namespace gptrain::inline spec {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// RETURNS a tensor's group in the order of its unit: 0 for norms, 2 for tensors of UnitEnd, else 1.
int64_t part_of_unit(const TensorSpec& tensor, UnitEnd end) {
  if (tensor.norm_use != NormUse::no_norm) return 0;
  return comes_last(tensor, end) ? 2 : 1;
}

// RETURNS a unit's reductions, but not `tied`. REQUIRES: its segments are laid out.
std::vector<Reduction> reductions_of(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                     const std::vector<Segment>& segments, const UnitRange& unit,
                                     bool sequence_parallel) {
  std::vector<Reduction> reductions;
  if (unit.elements == 0) return reductions;
  for (int64_t tensor = unit.first_tensor; tensor < unit.first_tensor + unit.num_tensors; ++tensor) {
    const auto i = static_cast<size_t>(tensor);
    const NormUse use = spec.tensors[i].norm_use;
    const int64_t start = segments[i].offset - unit.offset;
    if (use == NormUse::of_heads || use == NormUse::router || (use == NormUse::of_rows && sequence_parallel))
      reductions.push_back({ReductionGroup::tensor, start, segments[i].count});
    if (shards[i].shared_kv_count > 0)
      reductions.push_back({ReductionGroup::kv_heads, start + shards[i].shared_kv_first, shards[i].shared_kv_count});
  }
  reductions.push_back({ReductionGroup::replicas, 0, unit.elements});
  return reductions;
}

}  // namespace

bool comes_last(const TensorSpec& tensor, UnitEnd end) {
  switch (end) {
    case UnitEnd::matrices:
      break;
    case UnitEnd::all_matrices:
      return tensor.is_matrix();
    case UnitEnd::block_state:
      return tensor.has_block_state();
  }
  return tensor.of_block_matrix;
}

ParameterLayout make_layout(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                            const ReplicaCounts& replica_counts, bool sequence_parallel, const std::vector<bool>& held,
                            bool table_twice, UnitEnd end) {
  ParameterLayout layout;
  layout.end = end;
  const int64_t multiple = end == UnitEnd::block_state ? state_block : segment_multiple;
  layout.segments.resize(spec.tensors.size());
  size_t tensor = 0;
  for (size_t unit = 0; unit < spec.units.size(); ++unit) {
    const ReplicaGroup group = spec.units[unit].replicas;
    const int64_t pieces = replica_counts[group];
    layout.elements = round_up(layout.elements, unit_multiple * pieces);
    layout.piece_elements = round_up(layout.piece_elements, unit_multiple);
    UnitRange range{.offset = layout.elements,
                    .elements = 0,
                    .norm_elements = 0,
                    .before_last = 0,
                    .first_tensor = static_cast<int64_t>(tensor),
                    .num_tensors = 0,
                    .reductions = {},
                    .replicas = group,
                    .pieces = pieces,
                    .piece_offset = layout.piece_elements};
    const size_t first = tensor;
    while (tensor < spec.tensors.size() && spec.tensors[tensor].unit == static_cast<int64_t>(unit)) ++tensor;
    range.num_tensors = static_cast<int64_t>(tensor - first);
    if (!held.empty() && !held[unit]) {
      for (size_t i = first; i < tensor; ++i) layout.segments[i] = {layout.elements, 0};
      layout.units.push_back(std::move(range));
      continue;
    }
    for (size_t i = first; i < tensor; ++i) {
      if (!spec.tensors[i].is_matrix()) continue;
      range.matrix_rows += spec.tensors[i].shape[0];
      range.matrix_cols += spec.tensors[i].num_parts() * spec.tensors[i].shape[1];
    }
    for (const int64_t part : {0, 1, 2}) {
      for (size_t i = first; i < tensor; ++i) {
        if (part_of_unit(spec.tensors[i], end) != part) continue;
        layout.segments[i] = {layout.elements, shards[i].count()};
        layout.elements += round_up(shards[i].count(), multiple);
      }
      if (part == 0) range.norm_elements = layout.elements - range.offset;
      if (part == 1) range.before_last = layout.elements - range.offset;
    }
    const bool nothing_last = range.before_last == layout.elements - range.offset;
    range.elements = round_up(layout.elements - range.offset, multiple * pieces);
    layout.elements = range.offset + range.elements;
    layout.piece_elements += range.piece_elements();
    if (nothing_last) range.before_last = range.elements;
    range.reductions = reductions_of(spec, shards, layout.segments, range, sequence_parallel);
    for (size_t i = first; table_twice && unit == 0 && i < tensor; ++i) {
      if (spec.tensors[i].split == Split::vocabulary)
        range.reductions.push_back(
            {ReductionGroup::tied, layout.segments[i].offset - range.offset, layout.segments[i].count});
    }
    layout.units.push_back(std::move(range));
  }
  return layout;
}

}  // namespace gptrain::spec
