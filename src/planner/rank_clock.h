// When the events of one rank's planned step run.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "machine/event_times.h"
#include "planner/forecast.h"
#include "step/step_log.h"
#include "step/step_profile.h"

namespace gptrain {

// A time since the step's start, and what the longest chain of work before it was spent on: the sum is the time.
struct Moment {
  double time = 0;
  std::array<double, num_spendings> spent{};

  void add(size_t spending, double seconds) {
    time += seconds;
    spent[spending] += seconds;
  }
  // Becomes the other one if that is later.
  void await(const Moment& other) {
    if (other.time > time) *this = other;
  }
};

// Goes through a step action by action. Ops run one after another. A collective begins when it is called and the one
// before on its lane is over; what waits for it waits until then. Ops beside a collective of the tensor, gradients or
// weights lane are slowed down. Where lanes take turns, such a collective begins after those of the other lanes, too. A
// copy beside the ops begins when the one before is over, and is awaited by the next copy among the ops; what is
// offloaded has a lane each way. Peers are ready at once, but as `not_before` says.
class RankClock {
 public:
  // The log outlives the clock.
  RankClock(const StepLog& log, const EventTimes& times);

  // The next part of the step: what comes before the first action, each action, what comes after the last one. Returns
  // the time of its ops and waits; a wait for what was over has the length 0. not_before: of an action that waits for
  // another stage (see simulate_step.h), when that is there. `times`, if given, gets the time of each event.
  TimeSpan next(const Moment* not_before = nullptr, std::vector<TimeSpan>* times = nullptr);

  Moment end() const;  // of everything so far
  const Moment& now() const { return ops_; }
  // That the next part's collective takes by itself, and where it counts.
  std::pair<double, size_t> transfer() const;

  // That ops waited for collectives of each lane, transfers between stages left out, and the longest of those waits.
  const std::array<double, num_waited_lanes>& exposed_seconds() const { return exposed_; }
  const std::array<LongestWait, num_waited_lanes>& longest_waits() const { return longest_; }

 private:
  // What an action begins and another one awaits: kind of work, unit, micro-batch.
  using Work = std::array<int32_t, 3>;
  struct Pending {
    Moment end;
    size_t lane = 0;
    std::string_view operation = {};
  };
  static std::pair<std::optional<Work>, bool> work_of(const LoggedAction& action);  // and whether the action begins it

  const LoggedAction* action() const;
  size_t block() const;  // of seconds_
  const EventBlock& events(size_t block) const;
  void wait_for(const Pending& pending, const LoggedAction* action, bool counts);
  void run_op(const Event& event, double seconds);
  void run_copy(const Event& event, double seconds, TimeSpan& time);
  Pending run_copy_of_record(const Event& event, double seconds, ActionKind kind, TimeSpan& time);
  Pending run_collective(const Event& event, double seconds, const LoggedAction* action, TimeSpan& time);
  void run_postponed(const LoggedAction* action);

  const StepLog& log_;
  const Software software_;
  const double slow_down_;
  const bool lanes_take_turns_;
  std::vector<std::vector<double>> seconds_;  // by block of the log, then `before`, `after`; by event
  size_t part_ = 0;
  Moment ops_, copies_, to_host_, to_device_;
  std::array<Moment, num_lanes> lanes_{};
  std::map<Work, Pending> pending_;
  std::vector<Pending> in_part_;  // by event
  double postponed_ = 0;          // of sums of gradients
  std::array<double, num_waited_lanes> exposed_{};
  std::array<LongestWait, num_waited_lanes> longest_{};
};

// The times of a planned step for a profile. not_before: by action, as PlannedStage has it; empty: nothing is waited
// for.
ClockMaker planned_clock(const EventTimes& times, std::vector<double> not_before = {});

// The profile of a planned step, which begins at 0. `target`: whose full rates are its limits.
StepProfile planned_profile(int64_t rank, DType compute, StepLog log, const Target& target, const EventTimes& times,
                            std::vector<double> not_before = {});

}  // namespace gptrain
