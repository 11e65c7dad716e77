#include "planner/nearest_layout.h"

#include "base/error.h"
#include "planner/layouts.h"
#include "planner/predict.h"

namespace gptrain::inline planner {

Miss nearest_of(const RunConfig& config, const Machine& machine, int64_t device_bytes, const Miss& by_bound,
                const RunLayout& other) {
  Miss nearest = by_bound;
  for (const RunLayout& layout : {by_bound.layout, other}) {
    try {
      const int64_t missing =
          predict_layout(checked_layout(config, layout), machine, layout, 0).peak_bytes - device_bytes;
      if (!nearest.is_exact || missing < nearest.bytes) nearest = {missing, layout, true};
    } catch (const Error&) {
      continue;  // a rule of configs or the budget of activations forbids the layout
    }
  }
  return nearest;
}

}  // namespace gptrain::planner
