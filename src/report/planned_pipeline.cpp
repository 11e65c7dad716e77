#include "report/planned_pipeline.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fmt/format.h>
#include <optional>
#include <stdexcept>
#include <utility>

namespace gptrain {
namespace {

// The transfers from one stage on one way, in their order.
struct Link {
  struct Transfer {
    StageMessage message;
    double begun;
  };
  std::vector<Transfer> sends, receives;
  std::vector<double> lengths;  // by send
  std::vector<double> ends;     // of those of which both sides have begun

  void settle() {
    while (ends.size() < std::min(sends.size(), receives.size())) {
      const size_t i = ends.size();
      const double free = i > 0 ? ends.back() : 0;
      ends.push_back(std::max({sends[i].begun, receives[i].begun, free}) + lengths[i]);
    }
  }
  // When the transfer is over; none: not known yet.
  std::optional<double> end_of(const std::vector<Transfer>& side, const StageMessage& message) const {
    const auto found = std::find_if(side.rbegin(), side.rend(), [&](const Transfer& t) { return t.message == message; });
    const auto place = static_cast<size_t>(side.rend() - found) - 1;
    return place < ends.size() ? std::optional(ends[place]) : std::nullopt;
  }
};

std::optional<PipelineBar::Kind> bar_kind(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return PipelineBar::Kind::forward;
    case ActionKind::loss:
    case ActionKind::recompute:
    case ActionKind::backward_input:
    case ActionKind::backward:
      return PipelineBar::Kind::backward;
    case ActionKind::backward_weight:
      return PipelineBar::Kind::backward_weight;
    case ActionKind::update:
      return PipelineBar::Kind::update;
    default:
      return std::nullopt;
  }
}

// One stage on its way through its actions.
class Walk {
 public:
  Walk(const StageLog& stage, PlannedStage& out)
      : log_(*stage.log),
        schedule_(log_.program->schedule),
        stages_(schedule_.options.stages),
        clock_(stage.rates),
        out_(out) {
    out_.not_before.resize(log_.block_of.size());
    clock_.next(nullptr, log_.before, times_);
  }

  bool done() const { return next_ == log_.block_of.size(); }
  bool at_norm() const { return !done() && action().kind == ActionKind::norm; }
  double now() const { return clock_.now(); }
  int32_t stage() const { return stages_.stage; }

  // Goes on to the next action; false: it waits for another stage. `links`: by stage and way.
  bool advance(std::vector<std::array<Link, num_ways>>& links) {
    const std::optional<Transfer> transfer = transfer_of(action().kind);
    if (!transfer) {
      play(0);
      return true;
    }
    const StageMessage message = message_of(stages_, action().kind, action().micro_batch, action().unit);
    const Route route = route_of(stages_, message);
    Link& link = links[static_cast<size_t>(route.from)][static_cast<size_t>(route.way)];
    std::vector<Link::Transfer>& side = transfer->sends ? link.sends : link.receives;
    if (transfer->begins) {
      side.push_back({message, clock_.now()});
      if (transfer->sends) {
        double length = 0;
        for (const Event& event : block()) length += clock_.seconds_of(event);
        link.lengths.push_back(length);
      }
      link.settle();
      play(0);
      return true;
    }
    const std::optional<double> end = link.end_of(side, message);
    if (!end) return false;
    const double before = clock_.now();
    play(*end);
    out_.waiting_seconds += std::max(std::min(clock_.now(), *end) - before, 0.0);
    return true;
  }

  // The global norm, which all stages reach.
  void meet(double time) {
    out_.waiting_seconds += time - clock_.now();
    play(time);
  }

  // The end of the whole step.
  double finish() {
    clock_.next(nullptr, log_.after, times_);
    return clock_.end();
  }

 private:
  const Action& action() const { return schedule_.actions[next_]; }
  const EventBlock& block() const { return log_.blocks[static_cast<size_t>(log_.block_of[next_])]; }

  void play(double not_before) {
    out_.not_before[next_] = not_before;
    const TimeSpan span = clock_.next(&action(), block(), times_, not_before);
    if (const auto kind = bar_kind(action().kind)) add_bar(*kind, span);
    ++next_;
  }

  void add_bar(PipelineBar::Kind kind, const TimeSpan& span) {
    // Weight gradients right after those of the input are part of the same pass, and the head's always are.
    const bool of_head = action().unit == schedule_.num_units() - 1;
    if (kind == PipelineBar::Kind::backward_weight && (of_head || !stages_.schedule->splits_backward))
      kind = PipelineBar::Kind::backward;
    if (kind != PipelineBar::Kind::update) out_.busy_seconds += span.seconds();
    const int32_t chunk = kind == PipelineBar::Kind::update ? 0 : stages_.chunk_of(action().unit);
    if (!out_.bars.empty()) {
      PipelineBar& last = out_.bars.back();
      if (last.kind == kind && last.chunk == chunk && last.micro_batch == action().micro_batch) {
        last.time.end_seconds = span.end_seconds;
        return;
      }
    }
    out_.bars.push_back({kind, chunk, action().micro_batch, span});
  }

  const StepLog& log_;
  const Schedule& schedule_;
  const Stages& stages_;
  PlannedClock clock_;
  PlannedStage& out_;
  size_t next_ = 0;
  std::vector<TimeSpan> times_;
};

}  // namespace

std::string_view bar_name(PipelineBar::Kind kind) {
  constexpr std::array<std::string_view, 4> names = {"forward", "backward", "weight gradients", "update"};
  return names[static_cast<size_t>(kind)];
}

double PlannedPipeline::bubble() const {
  double busy = 0;
  double waiting = 0;
  for (const PlannedStage& stage : stages) {
    busy += stage.busy_seconds;
    waiting += stage.waiting_seconds;
  }
  return busy > 0 ? waiting / busy : 0;
}

PlannedPipeline plan_pipeline(const std::vector<StageLog>& stages) {
  PlannedPipeline pipeline;
  pipeline.stages.resize(stages.size());
  std::vector<Walk> walks;
  for (size_t i = 0; i < stages.size(); ++i) walks.emplace_back(stages[i], pipeline.stages[i]);
  std::vector<std::array<Link, num_ways>> links(stages.size());
  bool moved = true;
  while (std::exchange(moved, false)) {
    for (Walk& walk : walks) {
      while (!walk.done() && !walk.at_norm() && walk.advance(links)) moved = true;
    }
    if (moved || !std::all_of(walks.begin(), walks.end(), [](const Walk& walk) { return walk.at_norm(); })) continue;
    double latest = 0;
    for (const Walk& walk : walks) latest = std::max(latest, walk.now());
    for (Walk& walk : walks) walk.meet(latest);
    moved = true;
  }
  for (Walk& walk : walks) {
    if (!walk.done()) throw std::logic_error(fmt::format("stage {} waits for ever in the plan", walk.stage()));
    pipeline.seconds = std::max(pipeline.seconds, walk.finish());
  }
  return pipeline;
}

}  // namespace gptrain
