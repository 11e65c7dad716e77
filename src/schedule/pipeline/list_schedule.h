// Orders of passes found by playing a rule: at every tick each free stage starts the pass that the rule names, knowing
// what all stages have finished. Links take no time. For schedules that have no closed form.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "schedule/pipeline/pipeline.h"

namespace gptrain {

struct PassTicks {
  int32_t forward = 1;
  int32_t backward = 1;  // of the input alone where the schedule splits backwards
  int32_t backward_weight = 1;
};

// What has been started and finished so far. Passes of one kind through a chunk are in micro-batch order, so that
// counts say it all.
class PassBoard {
 public:
  PassBoard(const PipelineShape& shape, const PassTicks& ticks);

  // Whether the next pass of this kind through the chunk exists and has all that it needs.
  bool ready(PassKind kind, int32_t chunk) const;
  // How many passes of this kind through the chunk are in the list.
  int32_t started(PassKind kind, int32_t chunk) const { return started_[row(kind)][static_cast<size_t>(chunk)]; }
  const std::vector<Pass>& list(int32_t stage) const { return lists_[static_cast<size_t>(stage)]; }

  // choose(stage) gives the kind and chunk of a ready pass, or nothing. Ends when every stage is free and none has a
  // choice.
  template <typename Choose>
  std::vector<std::vector<Pass>> play(Choose choose) && {
    bool running = true;
    while (running) {
      for (int32_t stage = 0; stage < shape_.stages; ++stage) {
        if (ticks_left_[static_cast<size_t>(stage)] > 0) continue;
        const std::optional<std::pair<PassKind, int32_t>> choice = choose(stage);
        if (choice) start(stage, choice->first, choice->second);
      }
      running = finish_tick();
    }
    return std::move(lists_);
  }

 private:
  // Backwards are counted together, whole or of the input.
  static size_t row(PassKind kind) { return kind == PassKind::forward ? 0 : kind == PassKind::backward_weight ? 2 : 1; }
  void start(int32_t stage, PassKind kind, int32_t chunk);
  // Whether any pass was running.
  bool finish_tick();

  PipelineShape shape_;
  std::array<int32_t, 3> ticks_;
  std::array<std::vector<int32_t>, 3> started_, finished_;  // by row and chunk
  std::vector<int32_t> ticks_left_;                         // of the pass that a stage runs
  std::vector<std::vector<Pass>> lists_;
};

}  // namespace gptrain
