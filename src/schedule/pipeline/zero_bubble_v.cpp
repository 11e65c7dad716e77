#include "schedule/pipeline/list_schedule.h"
#include "schedule/pipeline/schedules.h"

namespace gptrain::inline schedule {
namespace {

// Returns the stage of a chunk. Chunks go down the stages and up again: the first stage holds the first and the last.
int32_t stage_in_v(const PipelineShape& shape, int32_t chunk) {
  return chunk < shape.stages ? chunk : shape.chunks() - 1 - chunk;
}

using Choice = std::optional<std::pair<PassKind, int32_t>>;

// A rule in place of the paper's search, with the paper's placement of chunks and bound of memory. It leaves no stage
// idle between passes if forwards, input gradients and weight gradients take one tick each.
// - Forwards and input gradients alternate. Weight gradients, oldest first, run when no forward can.
// - A stage prefers the later of its two chunks in forwards and the earlier in backwards, which is further on its way.
// - A stage has at most 2 * stages chunk activations in flight. This is 1F1B's memory, and the number of forwards
//   that a stage can start before the first gradient comes back to it.
class Rule {
 public:
  Rule(const PipelineShape& shape, const PassBoard& board) : shape_(shape), board_(board), oldest_(shape.stages, 0) {}

  Choice operator()(int32_t stage) {
    const std::vector<Pass>& list = board_.list(stage);
    const int32_t earlier = stage, later = shape_.chunks() - 1 - stage;
    const bool forwards_left = board_.started(PassKind::forward, later) < shape_.micro_batches;
    const bool may_begin_another = in_flight(earlier) + in_flight(later) < 2 * shape_.stages;
    Choice choice;
    if (!forwards_left || (!list.empty() && list.back().kind == PassKind::forward))
      choice = first_ready(PassKind::backward_input, earlier, later);
    if (!choice && may_begin_another) choice = first_ready(PassKind::forward, later, earlier);
    if (!choice) choice = weights(stage);
    if (!choice) choice = first_ready(PassKind::backward_input, earlier, later);
    return choice;
  }

 private:
  int32_t in_flight(int32_t chunk) const {
    return board_.started(PassKind::forward, chunk) - board_.started(PassKind::backward_weight, chunk);
  }

  Choice first_ready(PassKind kind, int32_t first, int32_t second) const {
    for (const int32_t chunk : {first, second}) {
      if (board_.ready(kind, chunk)) return std::pair(kind, chunk);
    }
    return std::nullopt;
  }

  Choice weights(int32_t stage) {
    const std::vector<Pass>& list = board_.list(stage);
    size_t& oldest = oldest_[stage];
    while (oldest < list.size() && list[oldest].kind != PassKind::backward_input) ++oldest;
    if (oldest == list.size()) return std::nullopt;
    return std::pair(PassKind::backward_weight, list[oldest++].chunk);
  }

  const PipelineShape& shape_;
  const PassBoard& board_;
  std::vector<size_t> oldest_;  // by stage: index in its list; input gradients before it have their weight gradients
};

std::vector<std::vector<Pass>> zero_bubble_v_passes(const PipelineShape& shape) {
  PassBoard board(shape, {});
  return std::move(board).play(Rule(shape, board));
}

}  // namespace

PipelineSchedule zero_bubble_v() {
  return {.name = "zero-bubble-v",
          .least_chunks = 2,
          .most_chunks = 2,
          .splits_backward = true,
          .stage_of = stage_in_v,
          .passes = zero_bubble_v_passes};
}

}  // namespace gptrain::schedule
