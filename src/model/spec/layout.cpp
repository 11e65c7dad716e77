#include "model/spec/layout.h"

namespace gptrain {

ParameterLayout make_layout(const ModelSpec& spec) {
  ParameterLayout layout;
  size_t tensor = 0;
  for (size_t unit = 0; unit < spec.units.size(); ++unit) {
    UnitRange range{layout.elements, 0, static_cast<int64_t>(tensor), 0};
    for (; tensor < spec.tensors.size() && spec.tensors[tensor].unit == static_cast<int64_t>(unit); ++tensor) {
      const int64_t count = spec.tensors[tensor].padded_count();
      layout.segments.push_back({layout.elements, count});
      layout.elements += (count + segment_multiple - 1) / segment_multiple * segment_multiple;
      ++range.num_tensors;
    }
    range.elements = layout.elements - range.offset;
    layout.units.push_back(range);
  }
  return layout;
}

}  // namespace gptrain
