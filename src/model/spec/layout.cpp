#include "model/spec/layout.h"

namespace gptrain {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

ParameterLayout make_layout(const ModelSpec& spec, const std::vector<TensorShard>& shards, int64_t pieces) {
  ParameterLayout layout;
  layout.pieces = pieces;
  layout.segments.resize(spec.tensors.size());
  size_t tensor = 0;
  for (size_t unit = 0; unit < spec.units.size(); ++unit) {
    UnitRange range{layout.elements, 0, 0, static_cast<int64_t>(tensor), 0};
    const size_t first = tensor;
    while (tensor < spec.tensors.size() && spec.tensors[tensor].unit == static_cast<int64_t>(unit)) ++tensor;
    range.num_tensors = static_cast<int64_t>(tensor - first);
    for (const bool norms : {true, false}) {
      for (size_t i = first; i < tensor; ++i) {
        if ((spec.tensors[i].norm_use != NormUse::no_norm) != norms) continue;
        layout.segments[i] = {layout.elements, shards[i].count()};
        layout.elements += round_up(shards[i].count(), segment_multiple);
      }
      if (norms) range.norm_elements = layout.elements - range.offset;
    }
    range.elements = round_up(layout.elements - range.offset, segment_multiple * pieces);
    layout.elements = range.offset + range.elements;
    layout.units.push_back(range);
  }
  return layout;
}

}  // namespace gptrain
