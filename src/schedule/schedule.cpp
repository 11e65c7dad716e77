#include "schedule/schedule.h"

#include <algorithm>

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

class OneStage {
 public:
  OneStage(int32_t micro_batches, const std::vector<bool>& recomputed) {
    schedule_.num_units = static_cast<int32_t>(recomputed.size());
    schedule_.micro_batches = micro_batches;
    schedule_.recomputed = recomputed;
  }

  Schedule build() {
    for (int32_t m = 0; m < schedule_.micro_batches; ++m) add_micro_batch(m);
    schedule_.actions.push_back({.kind = ActionKind::norm});
    for (int32_t unit = 0; unit < schedule_.num_units; ++unit) {
      schedule_.actions.push_back({.kind = ActionKind::update, .unit = unit});
    }
    schedule_.activation_slots = activations_.size();
    schedule_.replay_slots = replays_.size();
    schedule_.gradient_slots = gradients_.size();
    schedule_.carrier_slots = carriers_.size();
    return std::move(schedule_);
  }

 private:
  bool recomputed(int32_t unit) const { return schedule_.recomputed[static_cast<size_t>(unit)]; }

  void add_micro_batch(int32_t m) {
    const int32_t head = schedule_.num_units - 1;
    const int32_t activation = activations_.take();
    for (int32_t unit = 0; unit <= head; ++unit) {
      Action action{.kind = ActionKind::forward, .micro_batch = m, .unit = unit, .activation = activation};
      if (recomputed(unit)) action.replay = replays_.take();
      schedule_.actions.push_back(action);
      if (recomputed(unit)) replays_.give_back(action.replay);
    }

    int32_t gradient = gradients_.take();
    schedule_.actions.push_back(
        {.kind = ActionKind::loss, .micro_batch = m, .unit = head, .activation = activation, .gradient = gradient});
    int32_t carrier = carriers_.take();
    schedule_.actions.push_back({.kind = ActionKind::backward_input,
                                 .micro_batch = m,
                                 .unit = head,
                                 .activation = activation,
                                 .gradient = gradient,
                                 .d_input = carrier});
    gradients_.give_back(gradient);
    add_reduce(m, head);

    for (int32_t unit = head - 1; unit > 0; --unit) carrier = add_block_backward(m, unit, activation, carrier);

    schedule_.actions.push_back({.kind = ActionKind::backward_weight,
                                 .micro_batch = m,
                                 .unit = 0,
                                 .activation = activation,
                                 .d_output = carrier});
    carriers_.give_back(carrier);
    activations_.give_back(activation);
    add_reduce(m, 0);
  }

  // Returns the carrier that holds the gradient of the block's input.
  int32_t add_block_backward(int32_t m, int32_t unit, int32_t activation, int32_t d_output) {
    Action action{.kind = ActionKind::recompute, .micro_batch = m, .unit = unit, .activation = activation};
    if (recomputed(unit)) {
      action.replay = replays_.take();
      schedule_.actions.push_back(action);
    }
    action.kind = ActionKind::backward_input;
    action.gradient = gradients_.take();
    action.d_output = d_output;
    action.d_input = carriers_.take();
    schedule_.actions.push_back(action);
    const int32_t d_input = action.d_input;
    action.kind = ActionKind::backward_weight;
    action.d_input = -1;
    schedule_.actions.push_back(action);
    gradients_.give_back(action.gradient);
    carriers_.give_back(d_output);
    if (recomputed(unit)) replays_.give_back(action.replay);
    add_reduce(m, unit);
    return d_input;
  }

  void add_reduce(int32_t m, int32_t unit) {
    if (m + 1 == schedule_.micro_batches) schedule_.actions.push_back({.kind = ActionKind::reduce, .unit = unit});
  }

  Schedule schedule_;
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
    case ActionKind::reduce:
      return "reduce";
    case ActionKind::norm:
      return "norm";
    case ActionKind::update:
      return "update";
  }
  return "?";
}

Schedule one_stage_schedule(int32_t micro_batches, const std::vector<bool>& recomputed) {
  return OneStage(micro_batches, recomputed).build();
}

Schedule evaluation_schedule(const std::vector<bool>& recomputed) {
  Schedule schedule;
  schedule.num_units = static_cast<int32_t>(recomputed.size());
  schedule.micro_batches = 1;
  schedule.recomputed = recomputed;
  schedule.activation_slots = 1;
  for (int32_t unit = 0; unit < schedule.num_units; ++unit) {
    Action action{.kind = ActionKind::forward, .micro_batch = 0, .unit = unit, .activation = 0};
    if (recomputed[static_cast<size_t>(unit)]) {
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
