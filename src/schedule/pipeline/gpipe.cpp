#include "schedule/pipeline/schedules.h"

namespace gptrain::inline schedule {
namespace {

// All forwards, then all backwards.
std::vector<std::vector<Pass>> gpipe_passes(const PipelineShape& shape) {
  std::vector<std::vector<Pass>> stages(shape.stages);
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    std::vector<Pass>& list = stages[stage];
    for (const PassKind kind : {PassKind::forward, PassKind::backward}) {
      for (int32_t m = 0; m < shape.micro_batches; ++m) list.push_back({kind, stage, m});
    }
  }
  return stages;
}

}  // namespace

PipelineSchedule gpipe() { return {.name = "gpipe", .stage_of = stage_in_turn, .passes = gpipe_passes}; }

}  // namespace gptrain::schedule
