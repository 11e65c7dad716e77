#include "schedule/pipeline/list_schedule.h"
#include "schedule/pipeline/schedules.h"

namespace gptrain::inline schedule {
namespace {

// From the paper: the order is found once, before the run, by simulating passes in ticks of one forward. A backward
// that is ready runs before a forward that is ready. A stage without a ready backward goes on with forwards, which
// keeps it busy if gradients come late over slow links. A forward is recomputed right before its backward, so that one
// micro-batch at a time has all its activations on a stage. Unlike the paper, recomputation is part of the backward
// pass: it begins when the gradient has arrived, not in time for it, and also runs on the last stage. No stage departs
// from its list in the run.
//
// For each later stage a gradient takes 1 + backward_ticks ticks, and a stage starts a forward in every tick until the
// gradient arrives: stage i has at most 1 + (stages - 1 - i) * (1 + backward_ticks) micro-batches in flight.
std::vector<std::vector<Pass>> varuna_passes(const PipelineShape& shape) {
  const int32_t backward_ticks = shape.recompute ? 3 : 2;
  PassBoard board(shape, {.forward = 1, .backward = backward_ticks});
  const auto choose = [&board](int32_t stage) -> std::optional<std::pair<PassKind, int32_t>> {
    for (const PassKind kind : {PassKind::backward, PassKind::forward}) {
      if (board.ready(kind, stage)) return std::pair(kind, stage);
    }
    return std::nullopt;
  };
  return std::move(board).play(choose);
}

}  // namespace

PipelineSchedule varuna() { return {.name = "varuna", .stage_of = stage_in_turn, .passes = varuna_passes}; }

}  // namespace gptrain::schedule
