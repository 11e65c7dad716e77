#include "schedule/pipeline/simulate.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace gptrain::inline schedule {
namespace {

double time_of(PassKind kind, const PassTimes& times) {
  switch (kind) {
    case PassKind::forward:
      return times.forward;
    case PassKind::backward:
      return times.backward;
    case PassKind::backward_input:
      return times.backward_input;
    case PassKind::backward_weight:
      return times.backward_weight;
  }
  return 0;
}

class Player {
 public:
  Player(const PipelineShape& shape, const PipelineSchedule& schedule, const std::vector<std::vector<Pass>>& lists,
         const PipelineTimes& times)
      : shape_(shape),
        lists_(lists),
        times_(times),
        forward_end_(static_cast<size_t>(shape.chunks()) * static_cast<size_t>(shape.micro_batches), not_yet),
        gradient_end_(forward_end_),
        states_(lists.size()) {
    for (int32_t c = 0; c < shape.chunks(); ++c) stage_of_.push_back(schedule.stage_of(shape, c));
    result_.stages.resize(lists.size());
  }

  PipelineSimulation run() {
    for (size_t stage = 0; stage < lists_.size(); ++stage) able_.push_back(static_cast<int32_t>(stage));
    while (!able_.empty()) {
      const int32_t stage = able_.back();
      able_.pop_back();
      run_stage(stage);
    }
    summarize();
    return std::move(result_);
  }

 private:
  static constexpr double not_yet = -1;

  struct State {
    double now = 0;
    int32_t in_flight = 0;
    int32_t awaiting_gradient = 0;
    const double* waits_for = nullptr;  // the unknown end time that the next pass needs; null: the stage does not wait
  };

  double& end_of(std::vector<double>& ends, int32_t chunk, int32_t m) const {
    return ends[static_cast<size_t>(chunk) * static_cast<size_t>(shape_.micro_batches) + static_cast<size_t>(m)];
  }

  // End times that a pass needs; null: none. `transfer` seconds pass between *sent and the pass.
  struct Needs {
    const double* own = nullptr;
    const double* sent = nullptr;
    double transfer = 0;
  };

  Needs needs(const Pass& pass) {
    if (pass.kind == PassKind::backward_weight) return {.own = &end_of(gradient_end_, pass.chunk, pass.micro_batch)};
    const bool forward = pass.kind == PassKind::forward;
    Needs needs;
    if (!forward) needs.own = &end_of(forward_end_, pass.chunk, pass.micro_batch);
    const int32_t source = forward ? pass.chunk - 1 : pass.chunk + 1;
    if (source < 0 || source == shape_.chunks()) return needs;
    needs.sent = &end_of(forward ? forward_end_ : gradient_end_, source, pass.micro_batch);
    if (stage_of_[source] != stage_of_[pass.chunk]) needs.transfer = times_.transfer;
    return needs;
  }

  // Runs the stage's list up to a pass whose inputs do not exist yet.
  void run_stage(int32_t stage) {
    State& state = states_[stage];
    StageTimes& of_stage = result_.stages[stage];
    const std::vector<Pass>& list = lists_[stage];
    of_stage.passes.reserve(list.size());
    state.waits_for = nullptr;
    while (of_stage.passes.size() < list.size()) {
      const Pass& pass = list[of_stage.passes.size()];
      const Needs needed = needs(pass);
      for (const double* end : {needed.sent, needed.own}) {
        if (end && *end == not_yet) state.waits_for = end;
      }
      if (state.waits_for) return;
      PassTime time{.start = state.now};
      if (needed.sent) time.start = std::max(time.start, *needed.sent + needed.transfer);
      const auto c = static_cast<size_t>(pass.chunk);
      const double duration = time_of(pass.kind, times_.chunks[times_.chunks.size() == 1 ? 0 : c]);
      time.end = time.start + duration;
      of_stage.busy += duration;
      state.now = time.end;
      of_stage.passes.push_back(time);
      finish(pass, time.end);
      count(pass.kind, state, of_stage);
    }
  }

  // Records the end of a pass and wakes the stage that waits for it.
  void finish(const Pass& pass, double end) {
    if (pass.kind == PassKind::backward_weight) return;
    const bool forward = pass.kind == PassKind::forward;
    double& slot = end_of(forward ? forward_end_ : gradient_end_, pass.chunk, pass.micro_batch);
    slot = end;
    const int32_t target = forward ? pass.chunk + 1 : pass.chunk - 1;
    if (target < 0 || target == shape_.chunks()) return;
    const int32_t stage = stage_of_[target];
    if (states_[stage].waits_for == &slot) able_.push_back(stage);
  }

  static void count(PassKind kind, State& state, StageTimes& of_stage) {
    if (kind == PassKind::forward) {
      of_stage.most_in_flight = std::max(of_stage.most_in_flight, ++state.in_flight);
      of_stage.most_awaiting_gradient = std::max(of_stage.most_awaiting_gradient, ++state.awaiting_gradient);
    }
    if (kind == PassKind::backward || kind == PassKind::backward_weight) --state.in_flight;
    if (kind == PassKind::backward || kind == PassKind::backward_input) --state.awaiting_gradient;
  }

  void summarize() {
    double busy = 0, idle = 0;
    for (const State& state : states_) result_.makespan = std::max(result_.makespan, state.now);
    for (StageTimes& stage : result_.stages) {
      stage.idle = result_.makespan - stage.busy;
      busy += stage.busy;
      idle += stage.idle;
    }
    result_.bubble = busy > 0 ? idle / busy : 0;
    find_stall();
  }

  bool ended(size_t stage) const { return result_.stages[stage].passes.size() == lists_[stage].size(); }

  // Follows waiting stages, each to the one that it waits for, up to a cause: a stage that waits for itself or for a
  // pass in no list, or a stage in a ring of waiting ones.
  void find_stall() {
    size_t stage = 0;
    while (stage < lists_.size() && ended(stage)) ++stage;
    if (stage == lists_.size()) return;
    for (size_t step = 0; step < lists_.size(); ++step) {
      const auto other = static_cast<size_t>(stage_of_[missing_chunk(stage)]);
      if (ended(other)) break;
      stage = other;
    }
    const size_t next = result_.stages[stage].passes.size();
    const int32_t chunk = missing_chunk(stage);
    result_.stalled = fmt::format("stage {} waits forever at pass {} ({}) for the {} through chunk {} on stage {}",
                                  stage, next, pass_text(lists_[stage][next]),
                                  misses_forward(stage) ? "forward" : "gradient", chunk, stage_of_[chunk]);
  }

  // Whether the waiting stage needs the end of a forward, not of a gradient.
  bool misses_forward(size_t stage) const {
    const double* missing = states_[stage].waits_for;
    return missing >= forward_end_.data() && missing < forward_end_.data() + forward_end_.size();
  }

  int32_t missing_chunk(size_t stage) const {
    const std::vector<double>& ends = misses_forward(stage) ? forward_end_ : gradient_end_;
    return static_cast<int32_t>((states_[stage].waits_for - ends.data()) / shape_.micro_batches);
  }

  const PipelineShape& shape_;
  const std::vector<std::vector<Pass>>& lists_;
  const PipelineTimes& times_;
  std::vector<int32_t> stage_of_;                   // by chunk
  std::vector<double> forward_end_, gradient_end_;  // by chunk and micro-batch
  std::vector<State> states_;
  std::vector<int32_t> able_;  // stages that may be able to go on
  PipelineSimulation result_;
};

}  // namespace

PipelineSimulation simulate_passes(const PipelineShape& shape, const PipelineSchedule& schedule,
                                   const std::vector<std::vector<Pass>>& stages, const PipelineTimes& times) {
  return Player(shape, schedule, stages, times).run();
}

}  // namespace gptrain::schedule
