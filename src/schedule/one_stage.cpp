#include <utility>

#include "schedule/parameter_traffic.h"
#include "schedule/schedule.h"

namespace gptrain {
namespace {

class OneStage {
 public:
  explicit OneStage(const ScheduleOptions& options)
      : schedule_{.options = options, .actions = {}, .buffers = {}},
        saved_(options.units.size()),
        streams_(options.units.size()),
        prepared_(options.units.size(), -1),
        traffic_(schedule_) {}

  Schedule training() {
    reserve();
    for (int32_t m = 0; m < schedule_.options.micro_batches; ++m) {
      forward(m);
      backward(m);
    }
    traffic_.await_all_gradients();
    schedule_.actions.push_back({.kind = ActionKind::norm});
    for (int32_t unit = 0; unit <= head(); ++unit) {
      schedule_.actions.push_back({.kind = ActionKind::update, .unit = unit});
      if (schedule_.options.zero == 1 || schedule_.options.zero == 2)
        schedule_.actions.push_back({.kind = ActionKind::gather, .unit = unit});
    }
    return finished();
  }

  // The forward pass of one micro-batch, and with_loss its loss.
  Schedule without_backward(bool with_loss) {
    forward(0);
    if (with_loss) add_loss(ActionKind::evaluate, 0);
    return finished();
  }

 private:
  struct Saved {
    int32_t for_input = -1;
    int32_t for_weight = -1;
  };

  struct Named {
    ActionKind kind;
    UnitTraits unit;
    std::array<bool, num_operands> operands;
  };

  // Room for what the passes of units take; what parameters take beside them is little where there is much.
  void reserve() {
    const ScheduleOptions& options = schedule_.options;
    size_t actions = 0;
    size_t buffers = 0;
    for (const UnitTraits& unit : options.units) {
      actions += (options.joint_backward ? 2 : 3) + (unit.recomputed ? 1 : 0);
      buffers += 5 + (unit.recomputed ? 2 : 0);  // the stream and its gradient, what is saved, what is left for weights
    }
    schedule_.actions.reserve(actions * static_cast<size_t>(options.micro_batches));
    schedule_.buffers.reserve(buffers * static_cast<size_t>(options.micro_batches));
  }

  Schedule finished() {
    set_lifetimes(schedule_);
    return std::move(schedule_);
  }

  int32_t head() const { return schedule_.num_units() - 1; }

  int32_t new_buffer(BufferKind kind, int32_t m, int32_t unit) {
    schedule_.buffers.push_back({.kind = kind, .micro_batch = m, .unit = unit});
    return static_cast<int32_t>(schedule_.buffers.size()) - 1;
  }

  Saved& saved(int32_t unit) { return saved_[static_cast<size_t>(unit)]; }
  int32_t& stream(int32_t unit) { return streams_[static_cast<size_t>(unit)]; }

  // An action of a unit's own ops, with what there is of the micro-batch so far.
  Action action_of(ActionKind kind, int32_t m, int32_t unit) {
    Action action{.kind = kind, .micro_batch = m, .unit = unit};
    action[Operand::batch] = batch_;
    action[Operand::output] = stream(unit);
    if (unit > 0) action[Operand::input] = stream(unit - 1);
    action[Operand::saved_for_input] = saved(unit).for_input;
    action[Operand::saved_for_weight] = saved(unit).for_weight;
    action[Operand::prepared_weights] = prepared(unit);
    return action;
  }

  // Adds the action with those of its buffers that it accesses.
  void add(Action action) {
    const std::array<bool, num_operands>& named = named_by(action);
    for (size_t i = 0; i < num_operands; ++i) {
      if (!named[i]) action.buffers[i] = -1;
    }
    schedule_.actions.push_back(action);
  }

  // Which operands such an action names: worked out once for units that are alike, as a schedule has many actions.
  const std::array<bool, num_operands>& named_by(const Action& action) {
    const UnitTraits& unit = schedule_.traits(action.unit);
    for (const Named& known : named_) {
      if (known.kind == action.kind && known.unit == unit) return known.operands;
    }
    Named& named = named_.emplace_back(Named{action.kind, unit, {}});
    for (size_t i = 0; i < num_operands; ++i)
      named.operands[i] = access(schedule_, action.kind, action.unit, static_cast<Operand>(i)) != Access::none;
    return named.operands;
  }

  // What the unit saves gets buffers of its own.
  void save(int32_t m, int32_t unit) {
    if (schedule_.traits(unit).kind == UnitKind::embedding) return;
    saved(unit) = {new_buffer(BufferKind::saved_for_input, m, unit), new_buffer(BufferKind::saved_for_weight, m, unit)};
  }

  // Copies of weights stay as long as the weights do: with ZeRO 3 for one action.
  int32_t prepared(int32_t unit) {
    if (!schedule_.traits(unit).prepares_weights) return -1;
    int32_t& buffer = prepared_[static_cast<size_t>(unit)];
    if (buffer < 0 || schedule_.options.zero == 3) buffer = new_buffer(BufferKind::prepared_weights, -1, unit);
    return buffer;
  }

  void forward(int32_t m) {
    batch_ = new_buffer(BufferKind::batch, m, -1);
    for (int32_t unit = 0; unit <= head(); ++unit) {
      const int32_t weights = traffic_.use(unit, unit < head() ? unit + 1 : -1);
      if (unit < head()) stream(unit) = new_buffer(BufferKind::stream, m, unit);
      save(m, unit);
      Action action = action_of(ActionKind::forward, m, unit);
      action[Operand::weights] = weights;
      add(action);
    }
  }

  // Returns the buffer of what the loss leaves for the head's backward.
  int32_t add_loss(ActionKind kind, int32_t m) {
    const int32_t matrix = schedule_.options.tied_head ? 0 : head();
    const int32_t weights = traffic_.use(matrix, -1);
    Action action = action_of(kind, m, head());
    action[Operand::weights] = weights;
    if (kind == ActionKind::loss) {
      action[Operand::gradients] = new_buffer(BufferKind::gradients, m, head());
      action[Operand::whole_gradients] = traffic_.claim_gradients(matrix, m);
    }
    add(action);
    return action[Operand::gradients];
  }

  void backward(int32_t m) {
    const int32_t left_by_loss = add_loss(ActionKind::loss, m);
    int32_t d_output = -1;
    for (int32_t unit = head(); unit > 0; --unit) {
      const int32_t weights = traffic_.use(unit, unit > 1 && unit < head() ? unit - 1 : -1);
      const int32_t whole_gradients = traffic_.claim_gradients(unit, m);
      if (schedule_.traits(unit).recomputed) {
        save(m, unit);
        Action recompute = action_of(ActionKind::recompute, m, unit);
        recompute[Operand::weights] = weights;
        add(recompute);
      }
      Action action = action_of(ActionKind::backward, m, unit);
      action[Operand::weights] = weights;
      action[Operand::gradients] = unit == head() ? left_by_loss : new_buffer(BufferKind::gradients, m, unit);
      action[Operand::d_output] = d_output;
      action[Operand::d_input] = d_output = new_buffer(BufferKind::stream_gradient, m, unit - 1);
      action[Operand::whole_gradients] = whole_gradients;
      add_backward(action);
      traffic_.gradients_done(unit, m);
    }
    Action embedding = action_of(ActionKind::backward_weight, m, 0);
    embedding[Operand::whole_gradients] = traffic_.claim_gradients(0, m);
    embedding[Operand::d_output] = d_output;
    add(embedding);
    traffic_.gradients_done(0, m);
  }

  // Both halves of a unit's backward, in one action or in two.
  void add_backward(Action action) {
    if (schedule_.options.joint_backward) return add(action);
    action.kind = ActionKind::backward_input;
    add(action);
    action.kind = ActionKind::backward_weight;
    add(action);
  }

  Schedule schedule_;
  // Of the micro-batch at hand, the latter two by unit.
  int32_t batch_ = -1;
  std::vector<Saved> saved_;
  std::vector<int32_t> streams_;
  std::vector<int32_t> prepared_;
  std::vector<Named> named_;
  ParameterTraffic traffic_;
};

}  // namespace

Schedule one_stage_schedule(const ScheduleOptions& options) { return OneStage(options).training(); }

Schedule evaluation_schedule(const ScheduleOptions& options) { return OneStage(options).without_backward(true); }

Schedule inference_schedule(const ScheduleOptions& options) { return OneStage(options).without_backward(false); }

}  // namespace gptrain
