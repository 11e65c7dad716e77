#include "parallel/gradient_messages.h"

#include <algorithm>

#include "model/record.h"

namespace gptrain::inline parallel {

bool GradientMessages::any_coded() const {
  return std::any_of(units.begin(), units.end(), [](const UnitMessages& unit) { return unit.is_coded(); });
}

int GradientMessages::phases(bool cuts_state) const {
  for (const UnitMessages& unit : units)
    if (unit.is_coded()) return unit.layout->phases(cuts_state);
  return 1;
}

int64_t GradientMessages::snapshot_bytes(bool with_factors) const {
  int64_t bytes = 0;
  for (const ResidualBox& box : boxes)
    if (with_factors || !box.is_factor) bytes += align_up(box.count() * dtype_bytes(DType::f32));
  return bytes;
}

}  // namespace gptrain::parallel
