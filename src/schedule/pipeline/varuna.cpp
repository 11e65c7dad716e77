#include "schedule/pipeline/schedules.h"
#include "schedule/pipeline/list_schedule.h"

namespace gptrain {
namespace {

// From the paper: the order is found once, before the run, by playing passes in ticks of one forward; a backward that
// is ready goes before a forward that is ready; a stage that has no backward goes on with forwards, which is what keeps
// it busy when gradients come late over slow links. A forward runs again right before its backward, so that one
// micro-batch at a time has all its activations on a stage. Not from the paper: recomputation begins when the gradient
// has come, not in time for it, and also on the last stage, because here it is part of the backward pass; and no stage
// leaves its list in the run.
//
// A gradient needs a tick more than backward_ticks to come from each later stage, and a stage starts a forward in every
// tick until then: stage i has at most 1 + (stages - 1 - i) * (1 + backward_ticks) micro-batches in flight.
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

}  // namespace gptrain
