// Simulates when the events of one rank's planned step run.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/enum_array.h"
#include "machine/event_times.h"
#include "planner/forecast.h"
#include "planner/moment.h"
#include "planner/update_clock.h"
#include "step/step_log.h"
#include "step/step_profile.h"

namespace gptrain::inline planner {

// Simulates a rank's step action by action:
// - Ops run one after another, and more slowly beside a collective of the tensor, gradients or weights lane.
// - A collective begins once it is called and the previous one on its lane has ended. If lanes take turns
//   (EventTimes::lanes_take_turns), it also waits for the collectives of the other two of these lanes.
// - A copy beside the ops begins once the previous copy has ended. The next copy among the ops waits for it. Offloaded
//   activations have one lane for each direction.
// - Updates whose state is away (on the host or on disk) run beside the ops (UpdateClock), into the next step, whose
//   ops wait for them. So the clock starts as if other steps had run before. Weights that are away are read ahead of
//   their gathers, as many units as there are slots (parallel/unit_slots.h); gradients are written behind the ops.
// - Other ranks are ready at once, unless `not_before` says otherwise.
class RankClock {
 public:
  // Borrows the log, which must outlive the clock. `plays_once`: plays equal events only once if no other work is under
  // way, and adds their time for each further action. Sums are then rounded otherwise, by less than 1e-11 of the step.
  RankClock(const StepLog& log, const EventTimes& times, bool plays_once = false);

  // Plays the next part of the step: the events before the first action, then each action, then the events after the
  // last one. Returns the time span of the part's ops and waits. `not_before`: the moment at which data from another
  // stage has arrived (see simulate_step.h); null: the action waits for no other stage. `times`, if not null, receives
  // the time span of each event; a wait for finished work has length 0. REQUIRES: called at most log.actions.size() + 2
  // times.
  TimeSpan next(const Moment* not_before = nullptr, std::vector<TimeSpan>* times = nullptr);

  Moment end() const;                              // end of all work so far
  const Moment& now() const { return done_.ops; }  // end of the ops so far
  // Returns the seconds of the next part's events without any waiting, and the category (spending_of) of the last one.
  // Meant for a part with one event, a transfer between stages.
  std::pair<double, size_t> transfer() const;

  // Seconds that ops waited for collectives so far, by lane, and the longest wait. Transfers between stages are not
  // counted.
  const std::array<double, num_waited_lanes>& exposed_seconds() const { return done_.exposed; }
  const std::array<LongestWait, num_waited_lanes>& longest_waits() const { return done_.longest; }

 private:
  struct Pending {
    Moment end;
    size_t lane = 0;
    std::string_view operation = {};
  };
  // Work that one action begins and another one awaits.
  struct Work {
    int8_t kind = 0;
    int32_t unit = -1;
    int32_t micro_batch = -1;

    bool operator==(const Work&) const = default;
  };
  struct Role {
    std::optional<Work> work = {};  // none: the action neither begins nor awaits work
    bool is_transfer = false;       // between stages
    bool awaits = false;
    bool begins = false;
  };
  // Work that has begun. Work of one micro-batch is forgotten once it is awaited.
  class Begun {
   public:
    void add(const Work& work, const Pending& pending);
    // Returns null if the work has not begun. Valid until the next call of `add`.
    const Pending* await(const Work& work);

   private:
    std::vector<std::optional<Pending>> of_units_;  // by unit and kind: work of all micro-batches
    std::vector<Work> works_;                       // the others, few at a time; Work{}: a free place
    std::vector<Pending> pending_;                  // by place in works_
  };
  static Role role_of(const LoggedAction& action);
  // The work that an action waits for.
  struct Awaited {
    const Moment* end = nullptr;  // null: the action waits for none
    size_t lane = 0;
    std::string_view operation = {};
  };
  // The circumstances of an action, beside its events.
  struct Context {
    const LoggedAction* action = nullptr;
    bool is_transfer = false;
    Awaited awaited = {};
  };
  // Ends and waits of ops and collectives so far.
  struct Progress {
    Moment ops;                                      // end of the ops so far
    EnumArray<LaneKind, Moment, num_lanes> lanes{};  // end of the collectives so far
    double last_bandwidth = 0;                       // time of the last end of a collective that slows ops down
    std::array<double, num_waited_lanes> exposed{};
    std::array<LongestWait, num_waited_lanes> longest{};
  };
  // The progress that a block makes from time 0 on with nothing else under way.
  struct Played {
    struct Lane {
      size_t lane;
      Moment end;
      double exposed;
      LongestWait longest;
    };
    Moment ops;
    std::vector<Lane> lanes;  // lanes with collectives
    double last_bandwidth = 0;
  };

  const LoggedAction* action() const;  // action of the next part; null before the first and after the last action
  size_t block() const;                // index of the next part in seconds_
  const EventBlock& events(size_t block) const;
  void wait_for(const Awaited& awaited, const LoggedAction* action, bool counts);
  void wait_for(const Pending& pending, const LoggedAction* action) {
    wait_for({&pending.end, pending.lane, pending.operation}, action, true);
  }
  void run_op(const Event& event, double seconds);
  void run_copy(const Event& event, double seconds, TimeSpan& time);
  Pending run_copy_of_record(const Event& event, double seconds, ActionKind kind, TimeSpan& time);
  void run_collective(const Event& event, double seconds, const LoggedAction* action, TimeSpan& time, Pending& pending);
  void run_away(const Event& event, double seconds, const LoggedAction* action, TimeSpan& time);
  void run_postponed(const LoggedAction* action);
  // Returns the last work that the events begin, null if they begin none. Valid until the next call.
  const Pending* play_events(size_t block, const Context& context, std::vector<TimeSpan>* times);
  // Plays a block's events as play_events does, but for rounding. Returns false if that takes play_events.
  bool add_played(size_t block, const LoggedAction& action);
  bool is_played_alike(size_t block, const LoggedAction& action) const;
  Played play_alone(size_t block, const LoggedAction& action);
  void begin_after_another();
  void await_update(const LoggedAction& action);

  const StepLog& log_;
  const Software software_;
  const double slow_down_;
  const bool lanes_take_turns_;
  const bool delays_updates_;  // updates run beside the whole next step
  const bool plays_once_;
  std::vector<std::vector<double>> seconds_;   // by event of each block of the log; then of log_.before and log_.after
  std::vector<std::optional<Played>> played_;  // by block of the log
  size_t part_ = 0;
  Progress done_;
  Moment copies_, to_host_, to_device_;
  Begun begun_;
  std::vector<Pending> in_part_;  // by event of the part
  UpdateClock updates_;
  bool updating_ = false;         // the norm is over
  std::deque<Moment> gathered_;   // times of the last gathers whose weights are away, newest last
  std::optional<Moment> read_;    // end of the part's last read of values that are away
  std::optional<Moment> copied_;  // end of the last copy of a GPU's gradients, if they are not yet written to a drive
  double postponed_ = 0;          // seconds of gradient sums that run after all passes (Software::sums_gradients_last)
};

// Returns a maker of clocks for a profile of a planned step. `not_before`: see PlannedStage; empty: no action waits for
// another stage.
ClockMaker planned_clock(const EventTimes& times, std::vector<double> not_before = {});

// Returns the profile of a planned step, which begins at 0 seconds; it takes the log. `target` gives the full rates
// that ops are compared with. `not_before` as above.
StepProfile planned_profile(int64_t rank, DType compute, StepLog log, const Target& target, const EventTimes& times,
                            std::vector<double> not_before = {});

}  // namespace gptrain::planner
