#include <algorithm>

#include "schedule/pipeline/schedules.h"

namespace gptrain::inline schedule {
namespace {

// Each stage runs as many forwards as there are stages after it, then alternates a forward and a backward, then runs
// the remaining backwards. Stage i has at most stages - i micro-batches in flight.
std::vector<std::vector<Pass>> one_f_one_b_passes(const PipelineShape& shape) {
  std::vector<std::vector<Pass>> stages(shape.stages);
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    std::vector<Pass>& list = stages[stage];
    const int32_t ahead = std::min(shape.stages - 1 - stage, shape.micro_batches);
    for (int32_t m = 0; m < ahead; ++m) list.push_back({PassKind::forward, stage, m});
    for (int32_t m = 0; m < shape.micro_batches; ++m) {
      if (m + ahead < shape.micro_batches) list.push_back({PassKind::forward, stage, m + ahead});
      list.push_back({PassKind::backward, stage, m});
    }
  }
  return stages;
}

}  // namespace

int32_t stage_in_turn(const PipelineShape& shape, int32_t chunk) { return chunk % shape.stages; }

PipelineSchedule one_f_one_b() { return {.name = "1f1b", .stage_of = stage_in_turn, .passes = one_f_one_b_passes}; }

}  // namespace gptrain::schedule
