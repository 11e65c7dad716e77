#include "planner/simulate_step.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fmt/format.h>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "base/enum_array.h"

namespace gptrain::inline planner {
namespace {

// A queue whose elements lie side by side.
template <typename T>
class Queue {
 public:
  bool empty() const { return first_ == values_.size(); }
  size_t size() const { return values_.size() - first_; }
  const T& front() const { return values_[first_]; }
  T& operator[](size_t index) { return values_[first_ + index]; }
  const T& operator[](size_t index) const { return values_[first_ + index]; }
  void push_back(const T& value) {
    // Moves the elements to the front once most of the room is before them.
    if (first_ > most_before && first_ > size()) {
      values_.erase(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    values_.push_back(value);
  }
  void pop_front() { ++first_; }
  void erase(size_t index) {
    for (; index > 0; --index) values_[first_ + index] = values_[first_ + index - 1];
    pop_front();
  }

 private:
  static constexpr size_t most_before = 16;
  std::vector<T> values_;
  size_t first_ = 0;
};

// Transfers from one stage in one direction. A transfer begins once both sides have begun it.
class Link {
 public:
  struct Transfer {
    Moment end;  // until both sides have begun: the moment at which the first did
    double seconds = 0;
    size_t spending = 0;
  };
  // Begins a side's next transfer at `now`. `length`, from the sender only: its seconds and its Spending.
  void begin(bool sends, const StageMessage& message, const Moment& now, std::pair<double, size_t> length = {}) {
    Side& side = sends ? sends_ : receives_;
    const size_t index = side.next - first_;
    side.awaited.push_back({message, side.next++});
    const bool is_first = index == transfers_.size();
    if (is_first) transfers_.push_back({now});
    Transfer& transfer = transfers_[index];
    if (sends) std::tie(transfer.seconds, transfer.spending) = length;
    if (is_first) return;
    // The sender's moment counts if the receiver begins at the same time.
    if (sends ? now.time >= transfer.end.time : now.time > transfer.end.time) transfer.end = now;
    if (index > 0) transfer.end.await(transfers_[index - 1].end);
    transfer.end.add(transfer.spending, transfer.seconds);
  }

  // Returns a transfer that the side has begun, or null if the other side has not begun it yet. Returns each transfer
  // once. Valid until the next call of `begin`.
  const Transfer* take_ended(bool sends, const StageMessage& message) {
    Side& side = sends ? sends_ : receives_;
    size_t place = 0;
    while (place < side.awaited.size() && side.awaited[place].message != message) ++place;
    if (place == side.awaited.size()) throw std::logic_error("a stage awaits a transfer that it has not begun");
    const size_t number = side.awaited[place].number;
    if (number >= std::min(sends_.next, receives_.next)) return nullptr;
    const Transfer* const transfer = &transfers_[number - first_];
    side.awaited.erase(place);
    // The next transfer begins after the last one that has ended, which stays.
    const size_t awaited = std::min(sends_.first_awaited(), receives_.first_awaited());
    for (; first_ + 1 < awaited; ++first_) transfers_.pop_front();
    return transfer;
  }

 private:
  struct Awaited {
    StageMessage message;
    size_t number;
  };
  struct Side {
    Queue<Awaited> awaited;
    size_t next = 0;  // number of the next transfer

    size_t first_awaited() const { return awaited.empty() ? next : awaited.front().number; }
  };
  Side sends_, receives_;
  Queue<Transfer> transfers_;
  size_t first_ = 0;  // number of the transfer at transfers_.front()
};

std::optional<PipelineBar::Kind> bar_kind(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return PipelineBar::Kind::forward;
    case ActionKind::loss:
    case ActionKind::recompute_output:
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

// Plays the actions of one stage.
class Walk {
 public:
  Walk(const StageLog& stage, PlannedStage& out, bool plays_once, bool keeps_timeline)
      : log_(*stage.log),
        stages_(log_.stages),
        clock_(log_, stage.times, plays_once),
        out_(out),
        keeps_timeline_(keeps_timeline) {
    if (keeps_timeline) out_.not_before.resize(log_.actions.size());
    clock_.next();
  }

  bool done() const { return next_ == log_.actions.size(); }
  bool at_norm() const { return !done() && action().kind == ActionKind::norm; }
  const Moment& now() const { return clock_.now(); }
  int32_t stage() const { return stages_.stage; }
  const RankClock& clock() const { return clock_; }
  // Returns the seconds that transfers between stages were waited for, by lane.
  const std::array<double, num_waited_lanes>& exposed_transfers() const { return exposed_transfers_; }

  // Plays the next action, or returns false if it waits for another stage. `links`: by stage and Way.
  bool advance(std::vector<EnumArray<Way, Link, num_ways>>& links) {
    const auto& [transfer, route, message_but_micro_batch] = known(action());
    if (!transfer) {
      play(nullptr);
      return true;
    }
    StageMessage message = message_but_micro_batch;
    message.micro_batch = action().micro_batch;
    Link& link = links[route.from][route.way];
    if (transfer->begins) {
      link.begin(transfer->sends, message, clock_.now(),
                 transfer->sends ? clock_.transfer() : std::pair<double, size_t>{});
      play(nullptr);
      return true;
    }
    const Link::Transfer* const ended = link.take_ended(transfer->sends, message);
    if (ended == nullptr) return false;
    const double waited = std::max(ended->end.time - clock_.now().time, 0.0);
    out_.waiting_seconds += waited;
    exposed_transfers_[lane_of(*transfer, route.way)] += std::min(waited, ended->seconds);
    play(&ended->end);
    return true;
  }

  // Plays the global norm, which begins for all stages at `latest`.
  void meet(const Moment& latest) {
    out_.waiting_seconds += latest.time - clock_.now().time;
    play(&latest);
  }

  // Plays the rest of the step and returns its end.
  Moment finish() {
    clock_.next();
    return clock_.end();
  }

 private:
  // The transfer of an action, equal for all micro-batches.
  struct Known {
    std::optional<Transfer> transfer;
    Route route = {};
    StageMessage message = {};
  };

  const LoggedAction& action() const { return log_.actions[next_]; }

  const Known& known(const LoggedAction& of) {
    const size_t index = static_cast<size_t>(of.unit + 1) * num_action_kinds + static_cast<size_t>(of.kind);
    if (index >= known_.size()) known_.resize(index + num_action_kinds);
    std::optional<Known>& known = known_[index];
    if (known) return *known;
    known = Known{transfer_of(of.kind)};
    if (!known->transfer) return *known;
    known->message = message_of(stages_, of.kind, of.micro_batch, of.unit);
    known->route = route_of(stages_, known->message);
    return *known;
  }

  static size_t lane_of(const Transfer& transfer, Way way) {
    if (way == Way::to_next)
      return static_cast<size_t>(transfer.sends ? LaneKind::send_next : LaneKind::receive_previous);
    return static_cast<size_t>(transfer.sends ? LaneKind::send_previous : LaneKind::receive_next);
  }

  void play(const Moment* not_before) {
    if (not_before != nullptr && keeps_timeline_) out_.not_before[next_] = not_before->time;
    const TimeSpan span = clock_.next(not_before);
    if (const auto kind = bar_kind(action().kind)) add_bar(*kind, span);
    ++next_;
  }

  void add_bar(PipelineBar::Kind kind, const TimeSpan& span) {
    // A backward pass that is not split includes weight gradients; the head's pass always does.
    const bool of_head = action().unit == stages_.num_layers() - 1;
    if (kind == PipelineBar::Kind::backward_weight && (of_head || !stages_.schedule->splits_backward))
      kind = PipelineBar::Kind::backward;
    if (kind != PipelineBar::Kind::update) out_.busy_seconds += span.seconds();
    if (!keeps_timeline_) return;
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
  const Stages& stages_;
  RankClock clock_;
  PlannedStage& out_;
  const bool keeps_timeline_;                // bars and PlannedStage::not_before
  std::vector<std::optional<Known>> known_;  // by unit + 1 and kind of action
  size_t next_ = 0;
  std::array<double, num_waited_lanes> exposed_transfers_{};
};

}  // namespace

SimulatedStep simulate_step(const std::vector<StageLog>& stages, const SimulationOptions& options) {
  SimulatedStep step;
  step.pipeline.stages.resize(stages.size());
  size_t num_actions = 0;
  for (const StageLog& stage : stages) num_actions += stage.log->actions.size();
  std::vector<Walk> walks;
  walks.reserve(stages.size());
  for (size_t i = 0; i < stages.size(); ++i)
    walks.emplace_back(stages[i], step.pipeline.stages[i], num_actions > options.most_in_full, options.keeps_timeline);
  std::vector<EnumArray<Way, Link, num_ways>> links(stages.size());
  bool moved = true;
  while (std::exchange(moved, false)) {
    for (Walk& walk : walks) {
      while (!walk.done() && !walk.at_norm() && walk.advance(links)) moved = true;
    }
    if (moved || !std::all_of(walks.begin(), walks.end(), [](const Walk& walk) { return walk.at_norm(); })) continue;
    Moment latest;
    for (const Walk& walk : walks) latest.await(walk.now());
    for (Walk& walk : walks) walk.meet(latest);
    moved = true;
  }
  Moment end;
  const auto share = 1 / static_cast<double>(stages.size());
  for (size_t i = 0; i < walks.size(); ++i) {
    Walk& walk = walks[i];
    if (!walk.done()) throw std::logic_error(fmt::format("stage {} waits for ever in the plan", walk.stage()));
    end.await(walk.finish());
    double transfers = 0;
    for (size_t lane = 0; lane < num_waited_lanes; ++lane) {
      transfers += walk.exposed_transfers()[lane];
      step.exposed_seconds[lane] += share * (walk.clock().exposed_seconds()[lane] + walk.exposed_transfers()[lane]);
      const LongestWait& wait = walk.clock().longest_waits()[lane];
      if (wait.seconds > step.longest_waits[lane].seconds) step.longest_waits[lane] = wait;
    }
    step.bubble_seconds += share * (step.pipeline.stages[i].waiting_seconds - transfers);
  }
  step.pipeline.seconds = end.time;
  step.critical = end.spent;
  return step;
}

}  // namespace gptrain::planner
