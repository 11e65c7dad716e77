#include <algorithm>

#include "schedule/pipeline/schedules.h"

namespace gptrain::inline schedule {
namespace {

// Forwards and input gradients are in 1F1B's order. Stage i computes the weight gradients of a micro-batch i
// micro-batches later: input gradients go up the pipeline without waiting for weight gradients, and each stage has
// enough weight gradients left to fill the time in which the last input gradient travels to the first stage. Let F, B
// and W be the times of a forward, of input gradients and of weight gradients. If W <= min(F, B) and there are at least
// as many micro-batches as stages, a stage is idle for (stages - 1) * (F + B - W). Stage i holds min(stages - i,
// micro-batches) micro-batches that await their input gradients and up to i more that await their weight gradients:
// never more than 1F1B's first stage.
std::vector<std::vector<Pass>> zero_bubble_passes(const PipelineShape& shape) {
  std::vector<std::vector<Pass>> stages(shape.stages);
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    std::vector<Pass>& list = stages[stage];
    list.reserve(3 * static_cast<size_t>(shape.micro_batches));
    const int32_t ahead = std::min(shape.stages - 1 - stage, shape.micro_batches);
    for (int32_t m = 0; m < ahead; ++m) list.push_back({PassKind::forward, stage, m});
    for (int32_t m = 0; m < shape.micro_batches; ++m) {
      if (m + ahead < shape.micro_batches) list.push_back({PassKind::forward, stage, m + ahead});
      list.push_back({PassKind::backward_input, stage, m});
      if (m >= stage) list.push_back({PassKind::backward_weight, stage, m - stage});
    }
    for (int32_t m = std::max(0, shape.micro_batches - stage); m < shape.micro_batches; ++m)
      list.push_back({PassKind::backward_weight, stage, m});
  }
  return stages;
}

}  // namespace

PipelineSchedule zero_bubble() {
  return {.name = "zero-bubble", .splits_backward = true, .stage_of = stage_in_turn, .passes = zero_bubble_passes};
}

}  // namespace gptrain::schedule
