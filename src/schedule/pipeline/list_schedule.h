// Finds orders of passes by simulating a rule, for schedules that have no closed form. At every tick each free stage
// starts the pass that the rule chooses; the rule sees the passes that all stages have finished. Links take no time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "schedule/pipeline/pipeline.h"

namespace gptrain::inline schedule {

struct PassTicks {
  int32_t forward = 1;
  int32_t backward = 1;  // backward, or backward_input if the schedule splits backward passes
  int32_t backward_weight = 1;
};

// Passes that have been started and finished so far. Passes of one kind through a chunk run in micro-batch order, so
// that counts describe them fully.
class PassBoard {
 public:
  PassBoard(const PipelineShape& shape, const PassTicks& ticks);

  // Whether the next pass of this kind through the chunk exists and has all its inputs.
  bool ready(PassKind kind, int32_t chunk) const;
  // Returns the number of passes of this kind through the chunk that are in a list.
  int32_t started(PassKind kind, int32_t chunk) const { return started_[row(kind)][chunk]; }
  const std::vector<Pass>& list(int32_t stage) const { return lists_[stage]; }

  // Returns the lists of all stages. choose(stage) returns the kind and chunk of a ready pass, or nothing. The
  // simulation ends when every stage is free and choose returns nothing for all of them.
  template <typename Choose>
  std::vector<std::vector<Pass>> play(Choose choose) && {
    bool running = true;
    while (running) {
      for (int32_t stage = 0; stage < shape_.stages; ++stage) {
        if (ticks_left_[stage] > 0) continue;
        const std::optional<std::pair<PassKind, int32_t>> choice = choose(stage);
        if (choice) start(stage, choice->first, choice->second);
      }
      running = finish_tick();
    }
    return std::move(lists_);
  }

 private:
  // backward and backward_input share a row, as a schedule has one of them.
  static size_t row(PassKind kind) { return kind == PassKind::forward ? 0 : kind == PassKind::backward_weight ? 2 : 1; }
  void start(int32_t stage, PassKind kind, int32_t chunk);
  // Advances one tick. Returns whether any pass was running.
  bool finish_tick();

  PipelineShape shape_;
  std::array<int32_t, 3> ticks_;
  std::array<std::vector<int32_t>, 3> started_, finished_;  // by row and chunk
  std::vector<int32_t> ticks_left_;                         // by stage: ticks left of its pass; 0: the stage is free
  std::vector<std::vector<Pass>> lists_;
};

}  // namespace gptrain::schedule
