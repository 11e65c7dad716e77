#include "schedule/pipeline/list_schedule.h"

namespace gptrain::inline schedule {

PassBoard::PassBoard(const PipelineShape& shape, const PassTicks& ticks)
    : shape_(shape),
      ticks_{ticks.forward, ticks.backward, ticks.backward_weight},
      ticks_left_(shape.stages, 0),
      lists_(shape.stages) {
  for (auto* counts : {&started_, &finished_}) {
    for (auto& of_chunks : *counts) of_chunks.assign(shape.chunks(), 0);
  }
  const size_t longest = 3 * static_cast<size_t>(shape.chunks_per_stage) * static_cast<size_t>(shape.micro_batches);
  for (auto& list : lists_) list.reserve(longest);
}

bool PassBoard::ready(PassKind kind, int32_t chunk) const {
  const auto c = static_cast<size_t>(chunk);
  const int32_t next = started(kind, chunk);
  if (next == shape_.micro_batches) return false;
  if (kind == PassKind::forward) return c == 0 || finished_[0][c - 1] > next;
  if (kind == PassKind::backward_weight) return finished_[1][c] > next;
  const bool last = chunk == shape_.chunks() - 1;
  return (last ? finished_[0][c] : finished_[1][c + 1]) > next;
}

void PassBoard::start(int32_t stage, PassKind kind, int32_t chunk) {
  int32_t& count = started_[row(kind)][chunk];
  lists_[stage].push_back({kind, chunk, count++});
  ticks_left_[stage] = ticks_[row(kind)];
}

bool PassBoard::finish_tick() {
  bool running = false;
  for (size_t stage = 0; stage < lists_.size(); ++stage) {
    if (ticks_left_[stage] == 0) continue;
    running = true;
    if (--ticks_left_[stage] > 0) continue;
    const Pass& pass = lists_[stage].back();
    ++finished_[row(pass.kind)][pass.chunk];
  }
  return running;
}

}  // namespace gptrain::schedule
