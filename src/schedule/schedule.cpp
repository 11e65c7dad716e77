#include "schedule/schedule.h"

#include <algorithm>
#include <array>

namespace gptrain {
namespace {

// Hands out the lowest free slot and remembers how many there ever were.
class SlotPool {
 public:
  int32_t take() {
    const auto free = std::find(used_.begin(), used_.end(), false);
    const auto slot = static_cast<int32_t>(free - used_.begin());
    if (free == used_.end()) {
      used_.push_back(true);
    } else {
      *free = true;
    }
    return slot;
  }
  void give_back(int32_t slot) { used_[static_cast<size_t>(slot)] = false; }
  int32_t size() const { return static_cast<int32_t>(used_.size()); }

 private:
  std::vector<bool> used_;
};

// Adds what has to happen to parameters around the actions that use them.
class ParameterTraffic {
 public:
  explicit ParameterTraffic(Schedule& schedule) : schedule_(schedule) {
    held_.fill(-1);
    arrived_.fill(-1);
  }

  // The weights of `unit` are used next, those of `following` (-1: none) after them.
  void use(int32_t unit, int32_t following, bool first_use_in_step) {
    if (schedule_.zero == 1 || schedule_.zero == 2) {
      if (first_use_in_step) add(ActionKind::await_weights, unit);
      return;
    }
    if (schedule_.zero != 3) return;
    begin_gather(unit);
    int32_t& arrived = arrived_[slot(unit)];
    if (arrived != unit) add(ActionKind::await_weights, unit);
    arrived = unit;
    if (following >= 0) begin_gather(following);
  }

  // The gradients of `unit` are written next: its slot must be free.
  void claim_gradients(int32_t unit) {
    if (schedule_.zero >= 2) free_slot_of(unit);
  }

  // The gradients of `unit` are complete, for this micro-batch or for the step.
  void gradients_done(int32_t unit, int32_t micro_batch) {
    const bool last = micro_batch + 1 == schedule_.micro_batches;
    if (schedule_.zero < 2 && !last) return;
    if (schedule_.narrowed_sums) free_slot_of(unit);
    schedule_.actions.push_back({.kind = ActionKind::reduce, .micro_batch = micro_batch, .unit = unit});
    unawaited_.push_back({unit, micro_batch});
    if (schedule_.sums_use_slots()) pending_[slot(unit)] = {unit, micro_batch};
  }

  void await_all_gradients() {
    while (!unawaited_.empty()) await(Sum(unawaited_.front()));
  }

 private:
  struct Sum {
    int32_t unit = -1;
    int32_t micro_batch = -1;
    bool operator==(const Sum&) const = default;
  };

  size_t slot(int32_t unit) const { return static_cast<size_t>(parameter_slot(unit, schedule_.num_units)); }

  void add(ActionKind kind, int32_t unit) { schedule_.actions.push_back({.kind = kind, .unit = unit}); }

  void begin_gather(int32_t unit) {
    int32_t& held = held_[slot(unit)];
    if (held == unit) return;
    add(ActionKind::gather, unit);
    held = unit;
    arrived_[slot(unit)] = -1;
  }

  void free_slot_of(int32_t unit) {
    const Sum pending = pending_[slot(unit)];
    if (pending.unit >= 0) await(pending);
  }

  void await(Sum sum) {
    schedule_.actions.push_back(
        {.kind = ActionKind::await_gradients, .micro_batch = sum.micro_batch, .unit = sum.unit});
    unawaited_.erase(std::find(unawaited_.begin(), unawaited_.end(), sum));
    if (pending_[slot(sum.unit)] == sum) pending_[slot(sum.unit)] = {};
  }

  Schedule& schedule_;
  std::array<int32_t, num_parameter_slots> held_{};     // unit whose weights are in a slot, or on their way there
  std::array<int32_t, num_parameter_slots> arrived_{};  // unit whose weights are known to be there
  std::array<Sum, num_parameter_slots> pending_{};      // sums that still read their slot
  std::vector<Sum> unawaited_;                          // in the order in which they began
};

class OneStage {
 public:
  explicit OneStage(const ScheduleOptions& options) : joint_backward_(options.joint_backward), traffic_(schedule_) {
    schedule_.num_units = static_cast<int32_t>(options.recomputed.size());
    schedule_.micro_batches = options.micro_batches;
    schedule_.recomputed = options.recomputed;
    schedule_.zero = options.zero;
    schedule_.narrowed_sums = options.narrowed_sums;
    schedule_.tied_head = options.tied_head;
  }

  Schedule build() {
    for (int32_t m = 0; m < schedule_.micro_batches; ++m) add_micro_batch(m);
    traffic_.await_all_gradients();
    schedule_.actions.push_back({.kind = ActionKind::norm});
    for (int32_t unit = 0; unit < schedule_.num_units; ++unit) {
      schedule_.actions.push_back({.kind = ActionKind::update, .unit = unit});
      if (schedule_.zero == 1 || schedule_.zero == 2) {
        schedule_.actions.push_back({.kind = ActionKind::gather, .unit = unit});
      }
    }
    schedule_.activation_slots = activations_.size();
    schedule_.replay_slots = replays_.size();
    schedule_.gradient_slots = gradients_.size();
    schedule_.carrier_slots = carriers_.size();
    return std::move(schedule_);
  }

 private:
  bool recomputed(int32_t unit) const { return schedule_.recomputed[static_cast<size_t>(unit)]; }
  int32_t head() const { return schedule_.num_units - 1; }

  void add_micro_batch(int32_t m) {
    const int32_t activation = activations_.take();
    for (int32_t unit = 0; unit <= head(); ++unit) {
      traffic_.use(unit, unit < head() ? unit + 1 : -1, m == 0);
      Action action{.kind = ActionKind::forward, .micro_batch = m, .unit = unit, .activation = activation};
      if (recomputed(unit)) action.replay = replays_.take();
      schedule_.actions.push_back(action);
      if (recomputed(unit)) replays_.give_back(action.replay);
    }

    int32_t carrier = add_head_backward(m, activation);
    for (int32_t unit = head() - 1; unit > 0; --unit) carrier = add_block_backward(m, unit, activation, carrier);

    // With a tied head the loss has claimed them.
    if (!schedule_.tied_head) traffic_.claim_gradients(0);
    schedule_.actions.push_back({.kind = ActionKind::backward_weight,
                                 .micro_batch = m,
                                 .unit = 0,
                                 .activation = activation,
                                 .d_output = carrier});
    carriers_.give_back(carrier);
    activations_.give_back(activation);
    traffic_.gradients_done(0, m);
  }

  // Returns the carrier that holds the gradient of the head's input.
  int32_t add_head_backward(int32_t m, int32_t activation) {
    traffic_.claim_gradients(head());
    if (schedule_.tied_head) traffic_.claim_gradients(0);
    const int32_t gradient = gradients_.take();
    schedule_.actions.push_back(
        {.kind = ActionKind::loss, .micro_batch = m, .unit = head(), .activation = activation, .gradient = gradient});
    const int32_t carrier = carriers_.take();
    schedule_.actions.push_back({.kind = ActionKind::backward,
                                 .micro_batch = m,
                                 .unit = head(),
                                 .activation = activation,
                                 .gradient = gradient,
                                 .d_input = carrier});
    gradients_.give_back(gradient);
    traffic_.gradients_done(head(), m);
    return carrier;
  }

  // Returns the carrier that holds the gradient of the block's input.
  int32_t add_block_backward(int32_t m, int32_t unit, int32_t activation, int32_t d_output) {
    traffic_.use(unit, unit > 1 ? unit - 1 : -1, false);
    traffic_.claim_gradients(unit);
    Action action{.kind = ActionKind::recompute, .micro_batch = m, .unit = unit, .activation = activation};
    if (recomputed(unit)) {
      action.replay = replays_.take();
      schedule_.actions.push_back(action);
    }
    action.kind = joint_backward_ ? ActionKind::backward : ActionKind::backward_input;
    action.gradient = gradients_.take();
    action.d_output = d_output;
    action.d_input = carriers_.take();
    schedule_.actions.push_back(action);
    const int32_t d_input = action.d_input;
    if (!joint_backward_) {
      action.kind = ActionKind::backward_weight;
      action.d_input = -1;
      schedule_.actions.push_back(action);
    }
    gradients_.give_back(action.gradient);
    carriers_.give_back(d_output);
    if (recomputed(unit)) replays_.give_back(action.replay);
    traffic_.gradients_done(unit, m);
    return d_input;
  }

  Schedule schedule_;
  const bool joint_backward_;
  ParameterTraffic traffic_;
  SlotPool activations_, replays_, gradients_, carriers_;
};

}  // namespace

std::string_view action_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::loss:
      return "loss";
    case ActionKind::evaluate:
      return "evaluate";
    case ActionKind::recompute:
      return "recompute";
    case ActionKind::backward_input:
      return "backward_input";
    case ActionKind::backward_weight:
      return "backward_weight";
    case ActionKind::backward:
      return "backward";
    case ActionKind::gather:
      return "gather";
    case ActionKind::await_weights:
      return "await_weights";
    case ActionKind::reduce:
      return "reduce";
    case ActionKind::await_gradients:
      return "await_gradients";
    case ActionKind::norm:
      return "norm";
    case ActionKind::update:
      return "update";
  }
  return "?";
}

ParameterSlot parameter_slot(int64_t unit, int64_t num_units) {
  if (unit == 0) return ParameterSlot::embedding;
  if (unit == num_units - 1) return ParameterSlot::head;
  return unit % 2 == 0 ? ParameterSlot::even_block : ParameterSlot::odd_block;
}

Schedule one_stage_schedule(const ScheduleOptions& options) { return OneStage(options).build(); }

Schedule evaluation_schedule(const ScheduleOptions& options) {
  Schedule schedule;
  schedule.num_units = static_cast<int32_t>(options.recomputed.size());
  schedule.micro_batches = 1;
  schedule.recomputed = options.recomputed;
  schedule.zero = options.zero;
  schedule.tied_head = options.tied_head;
  schedule.activation_slots = 1;
  ParameterTraffic traffic(schedule);
  for (int32_t unit = 0; unit < schedule.num_units; ++unit) {
    traffic.use(unit, unit + 1 < schedule.num_units ? unit + 1 : -1, true);
    Action action{.kind = ActionKind::forward, .micro_batch = 0, .unit = unit, .activation = 0};
    if (options.recomputed[static_cast<size_t>(unit)]) {
      action.replay = 0;
      schedule.replay_slots = 1;
    }
    schedule.actions.push_back(action);
  }
  schedule.actions.push_back(
      {.kind = ActionKind::evaluate, .micro_batch = 0, .unit = schedule.num_units - 1, .activation = 0});
  return schedule;
}

}  // namespace gptrain
