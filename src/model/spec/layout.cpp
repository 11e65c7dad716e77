#include "model/spec/layout.h"

namespace gptrain {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

ParameterLayout make_layout(const ModelSpec& spec, const std::vector<TensorShard>& shards, int64_t pieces) {
  ParameterLayout layout;
  layout.pieces = pieces;
  size_t tensor = 0;
  for (size_t unit = 0; unit < spec.units.size(); ++unit) {
    UnitRange range{layout.elements, 0, static_cast<int64_t>(tensor), 0};
    for (; tensor < spec.tensors.size() && spec.tensors[tensor].unit == static_cast<int64_t>(unit); ++tensor) {
      const int64_t count = shards[tensor].count();
      layout.segments.push_back({layout.elements, count});
      layout.elements += round_up(count, segment_multiple);
      ++range.num_tensors;
    }
    range.elements = round_up(layout.elements - range.offset, segment_multiple * pieces);
    layout.elements = range.offset + range.elements;
    layout.units.push_back(range);
  }
  return layout;
}

}  // namespace gptrain
