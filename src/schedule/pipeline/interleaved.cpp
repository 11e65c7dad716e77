#include <algorithm>

#include "schedule/pipeline/schedules.h"

namespace gptrain::inline schedule {
namespace {

struct Turn {
  int32_t round;  // index of the chunk among the stage's chunks, in forward order
  int32_t micro_batch;
};

// Returns a stage's turns. A group of as many micro-batches as there are stages passes the stage's first chunk, then
// its second, and so on; backward passes go from the last chunk to the first. If the last group would not be full, the
// first group instead begins with empty turns, which have negative micro-batches and no passes. A list with fewer
// passes never waits longer, and empty turns cost the least at the front, where the pipeline is still filling.
std::vector<Turn> turns(const PipelineShape& shape, bool forward) {
  const int32_t groups = (shape.micro_batches + shape.stages - 1) / shape.stages;
  const int32_t empty = groups * shape.stages - shape.micro_batches;
  std::vector<Turn> order;
  order.reserve(static_cast<size_t>(groups) * static_cast<size_t>(shape.chunks()));
  for (int32_t group = 0; group < groups; ++group) {
    for (int32_t r = 0; r < shape.chunks_per_stage; ++r) {
      const int32_t round = forward ? r : shape.chunks_per_stage - 1 - r;
      for (int32_t i = 0; i < shape.stages; ++i) order.push_back({round, group * shape.stages + i - empty});
    }
  }
  return order;
}

// Runs 1F1B over the turns. The last stage begins to alternate when the first group reaches its last chunk. Each
// earlier stage runs two more forwards first, one for the way there and one for the way back. With one chunk for each
// stage one more forward is enough, as the backward follows at once: that is plain 1F1B.
std::vector<std::vector<Pass>> interleaved_passes(const PipelineShape& shape) {
  const std::vector<Turn> forwards = turns(shape, true);
  const std::vector<Turn> backwards = turns(shape, false);
  const size_t turns_ahead = shape.chunks_per_stage == 1 ? 1 : 2;
  std::vector<std::vector<Pass>> stages(shape.stages);
  for (int32_t stage = 0; stage < shape.stages; ++stage) {
    std::vector<Pass>& list = stages[stage];
    list.reserve(2 * static_cast<size_t>(shape.chunks_per_stage) * static_cast<size_t>(shape.micro_batches));
    const auto add = [&](PassKind kind, const Turn& turn) {
      if (turn.micro_batch >= 0) list.push_back({kind, turn.round * shape.stages + stage, turn.micro_batch});
    };
    const size_t ahead = std::min(forwards.size(), static_cast<size_t>((shape.chunks_per_stage - 1) * shape.stages) +
                                                       turns_ahead * static_cast<size_t>(shape.stages - 1 - stage));
    for (size_t k = 0; k < ahead; ++k) add(PassKind::forward, forwards[k]);
    for (size_t k = 0; k < backwards.size(); ++k) {
      if (k + ahead < forwards.size()) add(PassKind::forward, forwards[k + ahead]);
      add(PassKind::backward, backwards[k]);
    }
  }
  return stages;
}

}  // namespace

PipelineSchedule interleaved() {
  return {.name = "interleaved", .most_chunks = 0, .stage_of = stage_in_turn, .passes = interleaved_passes};
}

}  // namespace gptrain::schedule
