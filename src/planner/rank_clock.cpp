#include "planner/rank_clock.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ops/op_event.h"
#include "parallel/unit_slots.h"

namespace gptrain::inline planner {
namespace {

// Transfers between stages are too small to slow ops down.
bool takes_bandwidth(size_t lane) { return !is_between_stages(static_cast<LaneKind>(lane)); }

bool is_of_ops(const Event& event) { return event.queue == Event::Queue::ops; }

// Whether the events are of an update that runs beside the ops. It may begin with ops.
bool is_beside(const EventBlock& events) { return !std::all_of(events.begin(), events.end(), is_of_ops); }

// Whether updates run beside the whole next step: weights come back after the norm, before the updates begin.
bool delays_updates(const StepLog& log) {
  const auto is = [](ActionKind kind) { return [kind](const LoggedAction& action) { return action.kind == kind; }; };
  const auto norm = std::find_if(log.actions.begin(), log.actions.end(), is(ActionKind::norm));
  return norm != log.actions.end() && norm + 1 != log.actions.end() && (norm + 1)->kind == ActionKind::gather;
}

// Returns a clock of the updates, before the first step.
UpdateClock make_updates(const StepLog& log, const EventTimes& times) {
  std::vector<double> state_reads;
  for (const LoggedAction& action : log.actions) {
    if (action.kind != ActionKind::update) continue;
    for (const Event& event : log.blocks[static_cast<size_t>(action.block)])
      if (is_state_read(event)) state_reads.push_back(times.seconds_of(event));
  }
  return {times.drive_shares(), std::move(state_reads), log.landed_units};
}

// Steps that are played before the simulated one: transfers of two steps may be under way at once.
constexpr int steps_before = 2;

// Kinds of work that one action begins and another one awaits: two of all micro-batches, then those of one.
constexpr int8_t gathers = 0;
constexpr int8_t sums = 1;
constexpr int8_t offloads = 2;
constexpr int8_t fetches = 3;
constexpr int8_t first_transfer = 4;

bool is_receive(size_t lane) {
  return lane == static_cast<size_t>(LaneKind::receive_previous) || lane == static_cast<size_t>(LaneKind::receive_next);
}

}  // namespace

RankClock::RankClock(const StepLog& log, const EventTimes& times, bool plays_once)
    : log_(log),
      software_(times.software()),
      slow_down_(times.slow_down()),
      lanes_take_turns_(times.lanes_take_turns()),
      delays_updates_(delays_updates(log)),
      plays_once_(plays_once),
      played_(log.blocks.size()),
      updates_(make_updates(log, times)) {
  const auto add = [&](const EventBlock& block) {
    std::vector<double>& seconds = seconds_.emplace_back();
    for (const Event& event : block) seconds.push_back(times.seconds_of(event));
  };
  for (const EventBlock& block : log.blocks) add(block);
  add(log.before);
  add(log.after);
  if (!std::any_of(log.blocks.begin(), log.blocks.end(), is_beside)) return;
  for (int steps = 0; steps < steps_before; ++steps) begin_after_another();
}

// Plays a step, as if other ranks were ready at once, whose updates go on in the next one.
void RankClock::begin_after_another() {
  RankClock earlier(*this);
  for (size_t part = 0; part < log_.actions.size() + 2; ++part) earlier.next();
  updates_ = std::move(earlier.updates_);
  seconds_.swap(earlier.seconds_);  // postponed updates borrow them
  updates_.begin_next_step(earlier.now().time);
}

void RankClock::await_update(const LoggedAction& action) {
  if (updates_.any()) wait_for({updates_.over(action.unit), update_lane, action_name(ActionKind::update)}, &action);
}

const LoggedAction* RankClock::action() const {
  if (part_ == 0 || part_ > log_.actions.size()) return nullptr;
  return &log_.actions[part_ - 1];
}

size_t RankClock::block() const {
  if (part_ == 0) return log_.blocks.size();
  if (part_ > log_.actions.size()) return log_.blocks.size() + 1;
  return static_cast<size_t>(log_.actions[part_ - 1].block);
}

const EventBlock& RankClock::events(size_t block) const {
  if (block < log_.blocks.size()) return log_.blocks[block];
  return block == log_.blocks.size() ? log_.before : log_.after;
}

void RankClock::Begun::add(const Work& work, const Pending& pending) {
  if (work.kind <= sums) {
    const size_t index = 2 * static_cast<size_t>(work.unit) + static_cast<size_t>(work.kind);
    if (index >= of_units_.size()) of_units_.resize(index + 1);
    of_units_[index] = pending;
    return;
  }
  auto place = std::find(works_.begin(), works_.end(), Work{});
  if (place == works_.end()) {
    place = works_.insert(place, Work{});
    pending_.emplace_back();
  }
  *place = work;
  pending_[static_cast<size_t>(place - works_.begin())] = pending;
}

const RankClock::Pending* RankClock::Begun::await(const Work& work) {
  if (work.kind <= sums) {
    const size_t index = 2 * static_cast<size_t>(work.unit) + static_cast<size_t>(work.kind);
    return index < of_units_.size() && of_units_[index] ? &*of_units_[index] : nullptr;
  }
  const auto found = std::find(works_.begin(), works_.end(), work);
  if (found == works_.end()) return nullptr;
  *found = Work{};
  return &pending_[static_cast<size_t>(found - works_.begin())];
}

RankClock::Role RankClock::role_of(const LoggedAction& action) {
  if (action.kind < ActionKind::gather || action.kind > ActionKind::await_fetched) return {};
  const auto begin = [&](int8_t kind, int32_t micro_batch) {
    return Role{.work = Work{kind, action.unit, micro_batch}, .begins = true};
  };
  const auto await = [&](int8_t kind, int32_t micro_batch) {
    return Role{.work = Work{kind, action.unit, micro_batch}, .awaits = true};
  };
  switch (action.kind) {
    case ActionKind::gather:
      return begin(gathers, -1);
    case ActionKind::await_weights:
      return await(gathers, -1);
    case ActionKind::reduce:
      return begin(sums, -1);
    case ActionKind::reduce_on:
      return {.work = Work{sums, action.unit, -1}, .awaits = true, .begins = true};
    case ActionKind::await_gradients:
      return await(sums, -1);
    case ActionKind::offload:
      return begin(offloads, action.micro_batch);
    case ActionKind::await_offloaded:
      return await(offloads, action.micro_batch);
    case ActionKind::fetch:
      return begin(fetches, action.micro_batch);
    case ActionKind::await_fetched:
      return await(fetches, action.micro_batch);
    case ActionKind::keep_gradients:
      return {};
    default:
      break;
  }
  // Transfers lie in pairs: the first action begins one, the second waits for its end.
  const int number = static_cast<int>(action.kind) - static_cast<int>(ActionKind::send_output);
  const auto kind = static_cast<int8_t>(first_transfer + number / 2);
  Role role = number % 2 == 0 ? begin(kind, action.micro_batch) : await(kind, action.micro_batch);
  role.is_transfer = true;
  return role;
}

void RankClock::wait_for(const Awaited& awaited, const LoggedAction* action, bool counts) {
  const double waited = awaited.end->time - done_.ops.time;
  if (waited <= 0) return;
  done_.ops = *awaited.end;
  if (!counts) return;
  done_.exposed[awaited.lane] += waited;
  LongestWait& longest = done_.longest[awaited.lane];
  if (waited > longest.seconds) longest = {waited, awaited.operation, action != nullptr ? action->unit : -1};
}

void RankClock::run_op(const Event& event, double seconds) {
  const double busy = std::max(done_.last_bandwidth - done_.ops.time, 0.0);  // seconds for which lanes are busy
  const double beside = busy * (1 - slow_down_);  // seconds of the op that are done meanwhile
  done_.ops.add(spending_of(event), beside < seconds ? busy + seconds - beside : seconds / (1 - slow_down_));
}

void RankClock::run_copy(const Event& event, double seconds, TimeSpan& time) {
  if (!event.beside_ops) copies_.await(done_.ops);
  time.start_seconds = copies_.time;
  copies_.add(spending_of(event), seconds);
  time.end_seconds = copies_.time;
  if (!event.beside_ops) done_.ops = copies_;
}

void RankClock::run_away(const Event& event, double seconds, const LoggedAction* action, TimeSpan& time) {
  if (event.name == download_name) {
    copied_ = updates_.transfer(event, done_.ops, seconds, time);
    if (!event.beside_ops) wait_for({*copied_, update_lane, event.name}, action);
    return;
  }
  if (event.queue == Event::Queue::disk_write) {
    // Gradients of a GPU are written once they have come to the host.
    updates_.transfer(event, copied_.value_or(done_.ops), seconds, time);
    copied_.reset();
    return;
  }
  if (!read_) {
    read_ = done_.ops;
    if (action != nullptr && action->kind == ActionKind::gather) {
      read_ = gathered_.size() < UnitSlots::num_block_slots ? Moment{} : gathered_.front();
      if (gathered_.size() == UnitSlots::num_block_slots) gathered_.pop_front();
      if (event.queue == Event::Queue::disk_read) read_->await(updates_.written(action->unit));
    }
  }
  read_ = updates_.transfer(event, *read_, seconds, time);
  wait_for({*read_, update_lane, event.name}, action);
}

RankClock::Pending RankClock::run_copy_of_record(const Event& event, double seconds, ActionKind kind, TimeSpan& time) {
  Moment& lane = kind == ActionKind::offload ? to_host_ : to_device_;
  lane.await(done_.ops);
  time.start_seconds = lane.time;
  lane.add(spending_of(event), seconds);
  time.end_seconds = lane.time;
  if (!event.beside_ops) done_.ops.await(lane);
  return {lane, copy_lane, action_name(kind)};
}

void RankClock::run_collective(const Event& event, double seconds, const LoggedAction* action, TimeSpan& time,
                               Pending& pending) {
  const auto number = static_cast<size_t>(event.channel.lane);
  if (software_.sums_gradients_last && action != nullptr && action->kind == ActionKind::reduce) {
    postponed_ += seconds;
    pending = {};
    return;
  }
  Moment& lane = done_.lanes[number];
  lane.await(done_.ops);
  if (lanes_take_turns_ && takes_bandwidth(number) && lane.time < done_.last_bandwidth) {
    for (size_t other = 0; other < num_lanes; ++other)
      if (takes_bandwidth(other)) lane.await(done_.lanes[other]);
  }
  time.start_seconds = lane.time;
  lane.add(lane_spending(number), seconds);
  time.end_seconds = lane.time;
  if (takes_bandwidth(number)) done_.last_bandwidth = std::max(done_.last_bandwidth, lane.time);
  pending.end = lane;
  pending.lane = number;
  pending.operation = event.name;
  if (!software_.overlaps[number] && !is_receive(number)) wait_for(pending, action);
}

// Runs all postponed sums of gradients, when the first of them is needed.
void RankClock::run_postponed(const LoggedAction* action) {
  constexpr auto lane = static_cast<size_t>(LaneKind::gradients);
  Pending sums{done_.ops, lane, operation_name(Operation::all_reduce)};
  sums.end.add(lane_spending(lane), postponed_);
  postponed_ = 0;
  wait_for(sums, action);
}

const RankClock::Pending* RankClock::play_events(size_t block, const Context& context, std::vector<TimeSpan>* times) {
  const auto& [at, is_transfer, awaited] = context;
  const Pending* begun = nullptr;
  const EventBlock& block_events = events(block);
  const std::vector<double>& seconds = seconds_[block];
  const bool is_copy_of_record = at != nullptr && (at->kind == ActionKind::offload || at->kind == ActionKind::fetch);
  if (in_part_.size() < block_events.size()) in_part_.resize(block_events.size());
  if (times != nullptr) times->assign(block_events.size(), {});
  for (size_t i = 0; i < block_events.size(); ++i) {
    const Event& event = block_events[i];
    TimeSpan time{done_.ops.time, done_.ops.time};
    if (event.kind == Event::Kind::wait) {
      if (event.awaits >= 0) {
        wait_for(in_part_[event.awaits], at);
      } else if (awaited.end != nullptr) {
        wait_for(awaited, at, !is_transfer);
      }
      time.end_seconds = done_.ops.time;
    } else if (event.kind == Event::Kind::collective) {
      run_collective(event, seconds[i], at, time, in_part_[i]);
      begun = &in_part_[i];
    } else if (event.queue == Event::Queue::update && event.kind == Event::Kind::op) {
      done_.ops.add(spending_of(event), seconds[i]);  // an op of the host that the rank waits for
      time.end_seconds = done_.ops.time;
    } else if (event.queue != Event::Queue::ops) {
      run_away(event, seconds[i], at, time);
    } else if (event.kind == Event::Kind::copy && is_copy_of_record) {
      in_part_[i] = run_copy_of_record(event, seconds[i], at->kind, time);
      begun = &in_part_[i];
    } else if (event.kind == Event::Kind::copy) {
      run_copy(event, seconds[i], time);
    } else {
      run_op(event, seconds[i]);
      time.end_seconds = done_.ops.time;
    }
    if (times != nullptr) (*times)[i] = time;
  }
  return begun;
}

// Whether the block's events take equally long in all such actions if no other work is under way.
bool RankClock::is_played_alike(size_t block, const LoggedAction& action) const {
  const bool postpones = software_.sums_gradients_last && action.kind == ActionKind::reduce;
  const EventBlock& block_events = events(block);
  return !postpones && std::all_of(block_events.begin(), block_events.end(), [](const Event& event) {
    if (event.kind == Event::Kind::wait) return event.awaits >= 0;
    return is_of_ops(event) && event.kind != Event::Kind::copy;
  });
}

RankClock::Played RankClock::play_alone(size_t block, const LoggedAction& action) {
  Progress alone;
  std::swap(alone, done_);
  play_events(block, {.action = &action}, nullptr);
  std::swap(alone, done_);
  Played played{alone.ops, {}, alone.last_bandwidth};
  for (size_t lane = 0; lane < num_lanes; ++lane)
    if (alone.lanes[lane].time > 0)
      played.lanes.push_back({lane, alone.lanes[lane], alone.exposed[lane], alone.longest[lane]});
  return played;
}

bool RankClock::add_played(size_t block, const LoggedAction& action) {
  std::optional<Played>& played = played_[block];
  if (!played) {
    if (!is_played_alike(block, action)) return false;
    played = play_alone(block, action);
  }
  for (const auto& [lane, end, exposed, longest] : played->lanes) {
    done_.lanes[lane] = done_.ops;
    done_.lanes[lane].add(end);
    done_.exposed[lane] += exposed;
    if (longest.seconds > done_.longest[lane].seconds)
      done_.longest[lane] = {longest.seconds, longest.operation, action.unit};
  }
  if (played->last_bandwidth > 0) done_.last_bandwidth = done_.ops.time + played->last_bandwidth;
  done_.ops.add(played->ops);
  return true;
}

TimeSpan RankClock::next(const Moment* not_before, std::vector<TimeSpan>* times) {
  const LoggedAction* const at = action();
  const size_t block_number = block();
  const EventBlock& block_events = events(block_number);
  ++part_;
  const Role role = at != nullptr ? role_of(*at) : Role{};
  Awaited awaited;
  if (role.awaits)
    if (const Pending* const work = begun_.await(*role.work)) awaited = {&work->end, work->lane, work->operation};
  if (not_before != nullptr && (awaited.end == nullptr || not_before->time > awaited.end->time))
    awaited.end = not_before;
  TimeSpan span{done_.ops.time, done_.ops.time};
  if (postponed_ > 0 && at != nullptr && (at->kind == ActionKind::await_gradients || at->kind == ActionKind::norm))
    run_postponed(at);
  // An action that awaits work logs that wait as its first event, if at all.
  const bool writes_wait = !block_events.empty() && block_events.front().kind == Event::Kind::wait;
  const bool meets = at != nullptr && at->kind == ActionKind::norm && not_before != nullptr;
  if (awaited.end != nullptr && (!writes_wait || meets)) wait_for(awaited, at, !role.is_transfer && !meets);
  if (at != nullptr && at->kind == ActionKind::update && is_beside(block_events)) {
    if (times != nullptr) times->assign(block_events.size(), {});
    if (!updating_) updates_.begin(done_.ops);
    updating_ = true;
    for (size_t i = 0; i < block_events.size(); ++i)
      if (is_of_ops(block_events[i])) run_op(block_events[i], seconds_[block_number][i]);
    if (times != nullptr) {
      updates_.play(at->unit, block_events, seconds_[block_number], times);
    } else {
      updates_.postpone(at->unit, block_events, seconds_[block_number]);
    }
    return span;
  }
  const bool reads_weights = at != nullptr && at->kind == ActionKind::forward && !delays_updates_;
  if (reads_weights || (at != nullptr && at->kind == ActionKind::gather)) await_update(*at);
  read_.reset();
  const bool is_added = plays_once_ && at != nullptr && times == nullptr && awaited.end == nullptr && !role.begins &&
                        done_.last_bandwidth <= done_.ops.time && add_played(block_number, *at);
  if (!is_added) {
    const Pending* const begun = play_events(block_number, {at, role.is_transfer, awaited}, times);
    if (role.begins && begun != nullptr) begun_.add(*role.work, *begun);
  }
  if (read_ && at != nullptr && at->kind == ActionKind::gather) gathered_.push_back(done_.ops);
  span.end_seconds = done_.ops.time;
  return span;
}

Moment RankClock::end() const {
  Moment end = done_.ops;
  for (const Moment* const lane : {&copies_, &to_host_, &to_device_}) end.await(*lane);
  for (const Moment& lane : done_.lanes) end.await(lane);
  return end;
}

std::pair<double, size_t> RankClock::transfer() const {
  std::pair<double, size_t> result{0, 0};
  const size_t number = block();
  const EventBlock& block_events = events(number);
  for (size_t i = 0; i < block_events.size(); ++i) {
    result.first += seconds_[number][i];
    result.second = spending_of(block_events[i]);
  }
  return result;
}

namespace {

class ProfileClock final : public StepClock {
 public:
  ProfileClock(const StepLog& log, const EventTimes& times, const std::vector<double>& not_before)
      : clock_(log, times), not_before_(not_before) {}

  TimeSpan next(std::vector<TimeSpan>& times) override {
    const bool is_action = part_ > 0 && part_ <= not_before_.size();
    const Moment moment{is_action ? not_before_[part_ - 1] : 0, {}};
    ++part_;
    return clock_.next(moment.time > 0 ? &moment : nullptr, &times);
  }
  double end() const override { return clock_.end().time; }

 private:
  RankClock clock_;
  const std::vector<double> not_before_;
  size_t part_ = 0;
};

}  // namespace

ClockMaker planned_clock(const EventTimes& times, std::vector<double> not_before) {
  return [times, not_before = std::move(not_before)](const StepLog& log) -> std::unique_ptr<StepClock> {
    return std::make_unique<ProfileClock>(log, times, not_before);
  };
}

StepProfile planned_profile(int64_t rank, DType compute, StepLog log, const Target& target, const EventTimes& times,
                            std::vector<double> not_before) {
  StepProfile profile{.rank = rank,
                      .compute = compute,
                      .matrix_flops = compute == DType::f32 ? target.f32_flops : target.bf16_flops,
                      .bytes_per_second = target.bytes_per_second,
                      .log = std::move(log),
                      .planned = planned_clock(times, std::move(not_before))};
  const std::unique_ptr<StepClock> clock = profile.planned(profile.log);
  std::vector<TimeSpan> of_events;
  for (size_t part = 0; part < profile.log.actions.size() + 2; ++part) clock->next(of_events);
  profile.end_seconds = clock->end();
  return profile;
}

}  // namespace gptrain::planner
