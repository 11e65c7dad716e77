#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/enum_array.h"
#include "schedule/offload.h"
#include "schedule/parameter_traffic.h"
#include "schedule/schedule.h"
#include "schedule/transfers.h"

namespace gptrain::inline schedule {
namespace {

ScheduleOptions with_stages(ScheduleOptions options) {
  if (options.stages.first_units.empty())
    options.stages = Stages::one(static_cast<int32_t>(options.units.size()), options.micro_batches);
  options.stages.shape.micro_batches = options.micro_batches;
  return options;
}

// Returns the forwards of all chunks, micro-batch by micro-batch.
PassLists forward_passes(const Stages& stages) {
  PassLists passes(static_cast<size_t>(stages.shape.stages));
  for (int32_t m = 0; m < stages.shape.micro_batches; ++m) {
    for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk)
      passes[stages.stage_of_chunk(chunk)].push_back({PassKind::forward, chunk, m});
  }
  return passes;
}

// Turns the passes of one stage into actions.
class Stage {
 public:
  Stage(const ScheduleOptions& options, const PassLists& passes)
      : schedule_{.options = options, .actions = {}, .buffers = {}},
        stages_(schedule_.options.stages),
        passes_(passes[stages_.stage]),
        prepared_(options.units.size(), -1),
        named_(options.units.size() * num_action_kinds),
        transfers_(schedule_, passes),
        traffic_(schedule_) {}

  Schedule training() {
    reserve();
    play_passes();
    traffic_.await_all_gradients();
    if (schedule_.options.table_twice() && schedule_.options.holds(0))
      schedule_.actions.push_back({.kind = ActionKind::sum_tied, .unit = 0});
    schedule_.actions.push_back({.kind = ActionKind::norm});
    const ParameterFlow& flow = schedule_.options.flow;
    const auto for_each_held = [&](auto body) {
      for (int32_t unit = 0; unit < schedule_.num_layers(); ++unit)
        if (schedule_.options.holds(unit)) body(unit);
    };
    const auto gather = [&](int32_t unit) {
      if (flow.weights_return) schedule_.actions.push_back({.kind = ActionKind::gather, .unit = unit});
    };
    if (flow.updates_delayed) {
      for_each_held(gather);
      // Updates write the memory that gathers read.
      for_each_held(
          [&](int32_t unit) { schedule_.actions.push_back({.kind = ActionKind::await_weights, .unit = unit}); });
    }
    for_each_held([&](int32_t unit) {
      schedule_.actions.push_back({.kind = ActionKind::update, .unit = unit});
      if (schedule_.options.averages) schedule_.actions.push_back({.kind = ActionKind::average, .unit = unit});
      if (!flow.updates_delayed) gather(unit);
    });
    add_offloading(schedule_);
    return finished();
  }

  // Returns the forward passes, with the loss if with_loss.
  Schedule without_backward(bool with_loss) {
    with_loss_ = with_loss;
    play_passes();
    return finished();
  }

 private:
  // Buffers of a unit for one micro-batch; -1: not there yet.
  struct UnitBuffers {
    int32_t saved_for_recompute = -1;
    int32_t saved_for_input = -1;
    int32_t saved_for_weight = -1;
    int32_t gradients = -1;
    int32_t output = -1;
    int32_t d_output = -1;
  };

  // A micro-batch in a chunk, from its forward pass to its last backward pass.
  struct InFlight {
    int32_t chunk;
    int32_t micro_batch;
    int32_t batch;
    int32_t input;
    std::vector<UnitBuffers> units;  // by unit, from the first of the chunk
  };

  using NamedOperands = EnumArray<Operand, bool, num_operands>;

  // Reserves memory for the actions and buffers of passes, and for actions at the end of the step. Others are few in
  // large schedules.
  void reserve() {
    const ScheduleOptions& options = schedule_.options;
    const auto chunks = static_cast<size_t>(stages_.shape.chunks_per_stage);
    size_t actions = 9 * chunks;  // loads, two sends and two receives with their awaits
    size_t buffers = 3 * chunks;  // batches and received messages
    for (int32_t u = 0; u < schedule_.num_layers(); ++u) {
      if (!stages_.runs(u)) continue;
      const UnitTraits& unit = schedule_.traits(u);
      actions += (options.joint_backward ? 2 : 3) + (unit.recomputed ? 1 : 0);
      // The stream and its gradient, both saved_ buffers and `gradients`.
      buffers += 5 + (unit.recomputed ? 2 : 0) + (keeps(unit) ? 1 : 0);
      if (!unit.recomputed || unit.recompute_from < 0) continue;
      actions += static_cast<size_t>(u - unit.recompute_from);
      buffers += 3 * static_cast<size_t>(u - unit.recompute_from);
    }
    const size_t at_end = 8 * (schedule_.options.units.size() + 1);
    schedule_.actions.reserve(actions * static_cast<size_t>(options.micro_batches) + at_end);
    schedule_.buffers.reserve(buffers * static_cast<size_t>(options.micro_batches));
  }

  Schedule finished() {
    set_lifetimes(schedule_);
    return std::move(schedule_);
  }

  void play_passes() {
    transfers_.begin();
    for (pass_ = 0; pass_ < passes_.size(); ++pass_) {
      const Pass& pass = passes_[pass_];
      switch (pass.kind) {
        case PassKind::forward:
          forward(pass);
          break;
        case PassKind::backward:
          backward(in_flight(pass.chunk, pass.micro_batch), true);
          end(pass);
          break;
        case PassKind::backward_input:
          backward(in_flight(pass.chunk, pass.micro_batch), false);
          break;
        case PassKind::backward_weight:
          backward_weight(in_flight(pass.chunk, pass.micro_batch));
          end(pass);
          break;
      }
    }
    transfers_.finish();
  }

  int32_t head() const { return schedule_.num_layers() - 1; }
  bool is_block(int32_t unit) const { return schedule_.traits(unit).kind == UnitKind::block; }

  int32_t new_buffer(BufferKind kind, int32_t m, int32_t unit) {
    schedule_.buffers.push_back({.kind = kind, .micro_batch = m, .unit = unit});
    return static_cast<int32_t>(schedule_.buffers.size()) - 1;
  }

  InFlight& in_flight(int32_t chunk, int32_t m) {
    return *std::find_if(in_flight_.begin(), in_flight_.end(),
                         [&](const InFlight& flight) { return flight.chunk == chunk && flight.micro_batch == m; });
  }
  void end(const Pass& pass) {
    const InFlight* const done = &in_flight(pass.chunk, pass.micro_batch);
    in_flight_.erase(in_flight_.begin() + (done - in_flight_.data()));
  }
  UnitBuffers& of(InFlight& flight, int32_t unit) const {
    return flight.units[unit - stages_.first_unit(flight.chunk)];
  }

  // Returns the buffer of the micro-batch's tokens, which all chunks of the stage share. Loads it for the first of
  // them.
  int32_t batch_of(int32_t m) {
    const auto there = std::find_if(in_flight_.begin(), in_flight_.end(),
                                    [m](const InFlight& flight) { return flight.micro_batch == m; });
    if (there != in_flight_.end()) return there->batch;
    Action load{.kind = ActionKind::load, .micro_batch = m};
    load[Operand::batch] = new_buffer(BufferKind::batch, m, -1);
    schedule_.actions.push_back(load);
    return load[Operand::batch];
  }

  // Returns an action of the unit's ops that names all buffers of the micro-batch that exist so far.
  Action action_of(ActionKind kind, InFlight& flight, int32_t unit) {
    const UnitBuffers& own = of(flight, unit);
    Action action{.kind = kind, .micro_batch = flight.micro_batch, .unit = unit};
    action[Operand::batch] = flight.batch;
    action[Operand::output] = own.output;
    action[Operand::input] = unit > stages_.first_unit(flight.chunk) ? of(flight, unit - 1).output : flight.input;
    action[Operand::saved_for_recompute] = own.saved_for_recompute;
    action[Operand::saved_for_input] = own.saved_for_input;
    action[Operand::saved_for_weight] = own.saved_for_weight;
    action[Operand::gradients] = own.gradients;
    action[Operand::d_output] = own.d_output;
    action[Operand::prepared_weights] = prepared(unit);
    return action;
  }

  // Adds the action. Removes the buffers that it does not access.
  void add(Action action) {
    const NamedOperands& named = named_by(action);
    for (size_t i = 0; i < num_operands; ++i) {
      if (!named[i]) action.buffers[i] = -1;
    }
    schedule_.actions.push_back(action);
  }

  // Returns the operands that the action accesses. Cached by unit and kind, as a schedule has many actions.
  const NamedOperands& named_by(const Action& action) {
    const size_t index = static_cast<size_t>(action.unit) * num_action_kinds + static_cast<size_t>(action.kind);
    std::optional<NamedOperands>& named = named_[index];
    if (named) return *named;
    named.emplace();
    for (size_t i = 0; i < num_operands; ++i)
      (*named)[i] = access(schedule_, action.kind, action.unit, static_cast<Operand>(i)) != Access::none;
    return *named;
  }

  static bool keeps(const UnitTraits& unit) {
    return unit.uses[UnitPass::forward].writes.contains(Operand::saved_for_recompute);
  }

  // Gives the unit new buffers for the values that it saves.
  void save(InFlight& flight, int32_t unit) {
    if (schedule_.traits(unit).kind == UnitKind::embedding) return;
    of(flight, unit).saved_for_input = new_buffer(BufferKind::saved_for_input, flight.micro_batch, unit);
    of(flight, unit).saved_for_weight = new_buffer(BufferKind::saved_for_weight, flight.micro_batch, unit);
  }

  // Returns the buffer of prepared weights. It lasts as long as the weights: one action if they are gathered, else the
  // step.
  int32_t prepared(int32_t unit) {
    if (!schedule_.traits(unit).prepares_weights) return -1;
    int32_t& buffer = prepared_[unit];
    if (buffer < 0 || schedule_.options.flow.gathers_weights())
      buffer = new_buffer(BufferKind::prepared_weights, -1, unit);
    return buffer;
  }

  // Whether `units`, which follow the unit that is used next, may be one more.
  bool may_gather_more(const std::vector<int32_t>& units) const {
    return schedule_.options.flow.gathers_weights() && std::ssize(units) < schedule_.options.gathers_ahead;
  }

  // Returns the units after `unit` of a forward run up to `end`, as many as may be gathered ahead.
  std::vector<int32_t> units_after(int32_t unit, int32_t end) const {
    std::vector<int32_t> units;
    for (int32_t next = unit + 1; next < end && may_gather_more(units); ++next) units.push_back(next);
    return units;
  }

  // Returns the blocks that run first in the backward passes of the units before a block, in their order, as many as
  // may be gathered ahead. Stops after a block whose backward pass begins by recomputing an earlier block.
  std::vector<int32_t> blocks_before(int32_t block, int32_t first) const {
    std::vector<int32_t> blocks;
    for (int32_t next = block - 1; next >= std::max(first, 1); --next) {
      if (!may_gather_more(blocks)) return blocks;
      const int32_t run = first_run_for_backward(next);
      if (is_block(run)) blocks.push_back(run);
      if (run != next) return blocks;
    }
    add_next_pass_to(blocks);
    return blocks;
  }

  // Adds the block with which the next pass begins, if it begins with one and there is room.
  void add_next_pass_to(std::vector<int32_t>& units) const {
    if (!may_gather_more(units)) return;
    if (const int32_t block = first_block_of_next_pass(); block >= 0) units.push_back(block);
  }

  // Returns the block with which the next pass begins; -1 if it begins with another unit or reads no weights.
  int32_t first_block_of_next_pass() const {
    if (pass_ + 1 >= passes_.size() || passes_[pass_ + 1].kind == PassKind::backward_weight) return -1;
    const Pass& next = passes_[pass_ + 1];
    const int32_t unit = next.kind == PassKind::forward ? stages_.first_unit(next.chunk)
                                                        : first_run_for_backward(stages_.end_unit(next.chunk) - 1);
    return is_block(unit) ? unit : -1;
  }

  // Returns the unit that runs first in the backward pass of a unit.
  int32_t first_run_for_backward(int32_t unit) const {
    const UnitTraits& traits = schedule_.traits(unit);
    return traits.recomputed && traits.recompute_from >= 0 ? traits.recompute_from : unit;
  }

  void forward(const Pass& pass) {
    const int32_t first = stages_.first_unit(pass.chunk);
    const int32_t end = stages_.end_unit(pass.chunk);
    const int32_t m = pass.micro_batch;
    const int32_t batch = batch_of(m);
    int32_t input = -1;
    if (pass.chunk > 0) {
      const StageMessage message{false, pass.chunk - 1, m};
      const Route route = route_of(stages_, message);
      input = route.from == route.to ? of(in_flight(pass.chunk - 1, m), first - 1).output : transfers_.receive(message);
    }
    InFlight& flight = in_flight_.emplace_back(InFlight{.chunk = pass.chunk,
                                                        .micro_batch = m,
                                                        .batch = batch,
                                                        .input = input,
                                                        .units = std::vector<UnitBuffers>(end - first)});
    for (int32_t unit = first; unit < end; ++unit) {
      std::vector<int32_t> following = units_after(unit, end);
      if (is_block(end - 1)) add_next_pass_to(following);
      add_forward(ActionKind::forward, flight, unit, traffic_.use(unit, following));
    }
    if (end <= head()) send({false, pass.chunk, m}, of(flight, end - 1).output);
    if (end > head() && with_loss_) add_loss(ActionKind::evaluate, flight);
  }

  // Adds a unit's forward pass, which writes new buffers.
  void add_forward(ActionKind kind, InFlight& flight, int32_t unit, int32_t weights) {
    UnitBuffers& own = of(flight, unit);
    if (unit < head()) own.output = new_buffer(BufferKind::stream, flight.micro_batch, unit);
    if (keeps(schedule_.traits(unit)))
      own.saved_for_recompute = new_buffer(BufferKind::saved_for_recompute, flight.micro_batch, unit);
    save(flight, unit);
    Action action = action_of(kind, flight, unit);
    action[Operand::weights] = weights;
    add(action);
  }

  // Sends the message if the chunk that needs it is on another stage.
  void send(const StageMessage& message, int32_t buffer) {
    const Route route = route_of(stages_, message);
    if (route.from != route.to) transfers_.send(message, buffer);
  }

  int32_t matrix_unit() const { return schedule_.options.tied_head ? 0 : head(); }

  void add_loss(ActionKind kind, InFlight& flight) {
    const int32_t weights = traffic_.use(matrix_unit(), {});
    Action action = action_of(kind, flight, head());
    action[Operand::weights] = weights;
    if (kind == ActionKind::loss) {
      UnitBuffers& own = of(flight, head());
      action[Operand::gradients] = own.gradients = new_buffer(BufferKind::gradients, flight.micro_batch, head());
      action[Operand::whole_gradients] = traffic_.claim_gradients(matrix_unit(), flight.micro_batch);
    }
    add(action);
  }

  // Returns the buffer with the gradient of the chunk's output. Receives it if it comes from another stage.
  int32_t gradient_of_output(InFlight& flight) {
    const StageMessage message{true, flight.chunk + 1, flight.micro_batch};
    const Route route = route_of(stages_, message);
    const int32_t last = stages_.end_unit(flight.chunk) - 1;
    return route.from == route.to ? of(flight, last).d_output : transfers_.receive(message);
  }

  // Passes the gradient of a unit's input on to the unit before, which may be on another stage.
  void hand_down(InFlight& flight, int32_t unit, int32_t gradient) {
    if (unit > stages_.first_unit(flight.chunk)) {
      of(flight, unit - 1).d_output = gradient;
      return;
    }
    const StageMessage message{true, flight.chunk, flight.micro_batch};
    const Route route = route_of(stages_, message);
    if (route.from != route.to) return transfers_.send(message, gradient);
    of(in_flight(flight.chunk - 1, flight.micro_batch), unit - 1).d_output = gradient;
  }

  // Adds the backward pass of a chunk. Without with_weights, weight gradients are left to backward_weight, except the
  // head's: the loss computes nearly all of them.
  void backward(InFlight& flight, bool with_weights) {
    const int32_t first = stages_.first_unit(flight.chunk);
    const int32_t last = stages_.end_unit(flight.chunk) - 1;
    const int32_t m = flight.micro_batch;
    if (last == head()) {
      add_loss(ActionKind::loss, flight);
    } else {
      of(flight, last).d_output = gradient_of_output(flight);
    }
    for (int32_t unit = last; unit >= first && unit > 0; --unit) {
      if (schedule_.traits(unit).recomputed) run_up_to(flight, unit);
      std::vector<int32_t> following;
      if (is_block(unit)) following = blocks_before(unit, first);
      const int32_t weights = traffic_.use(unit, following);
      const bool both = with_weights || unit == head();
      const int32_t whole_gradients = both ? traffic_.claim_gradients(unit, m) : -1;
      if (schedule_.traits(unit).recomputed) {
        save(flight, unit);
        Action recompute = action_of(ActionKind::recompute, flight, unit);
        recompute[Operand::weights] = weights;
        add(recompute);
      }
      if (unit != head()) of(flight, unit).gradients = new_buffer(BufferKind::gradients, m, unit);
      Action action = action_of(ActionKind::backward, flight, unit);
      action[Operand::weights] = weights;
      action[Operand::d_input] = new_buffer(BufferKind::stream_gradient, m, unit - 1);
      action[Operand::whole_gradients] = whole_gradients;
      add_backward(action, both);
      if (both) weights_done(unit, m);
      hand_down(flight, unit, action[Operand::d_input]);
    }
    if (first == 0 && with_weights) add_weight_gradients(flight, 0);
  }

  // Recomputes the outputs of the units from recompute_from up to the one before `unit`.
  void run_up_to(InFlight& flight, int32_t unit) {
    const int32_t first = schedule_.traits(unit).recompute_from;
    for (int32_t recomputed_unit = first; first >= 0 && recomputed_unit < unit; ++recomputed_unit) {
      const int32_t weights = traffic_.use(recomputed_unit, units_after(recomputed_unit, unit + 1));
      add_forward(ActionKind::recompute_output, flight, recomputed_unit, weights);
    }
  }

  // Adds the actions for weight gradients that backward() has left out.
  void backward_weight(InFlight& flight) {
    for (int32_t unit = stages_.end_unit(flight.chunk) - 1; unit >= stages_.first_unit(flight.chunk); --unit) {
      if (unit != head()) add_weight_gradients(flight, unit);
    }
  }

  void add_weight_gradients(InFlight& flight, int32_t unit) {
    const int32_t whole_gradients = traffic_.claim_gradients(unit, flight.micro_batch);
    Action action = action_of(ActionKind::backward_weight, flight, unit);
    action[Operand::whole_gradients] = whole_gradients;
    add(action);
    weights_done(unit, flight.micro_batch);
  }

  // Notes that a unit's gradients of a micro-batch are complete. After the head's, a tied table's are complete as well
  // if its unit runs on another stage, as only the loss uses the table here.
  void weights_done(int32_t unit, int32_t m) {
    traffic_.gradients_done(unit, m);
    if (unit == head() && matrix_unit() != head() && !stages_.runs(matrix_unit())) traffic_.gradients_done(0, m);
  }

  // Adds both halves of a unit's backward pass, in one or two actions, or the first half alone.
  void add_backward(Action action, bool both) {
    if (both && schedule_.options.joint_backward) return add(action);
    action.kind = ActionKind::backward_input;
    add(action);
    if (!both) return;
    action.kind = ActionKind::backward_weight;
    add(action);
  }

  Schedule schedule_;
  const Stages& stages_;
  const std::vector<Pass>& passes_;  // this stage's passes
  size_t pass_ = 0;                  // index of the current pass
  bool with_loss_ = false;           // forward passes end with the loss (evaluation)
  std::vector<InFlight> in_flight_;
  std::vector<int32_t> prepared_;                    // by unit: the last buffer of prepared weights, or -1
  std::vector<std::optional<NamedOperands>> named_;  // by unit and kind
  StageTransfers transfers_;
  ParameterTraffic traffic_;
};

}  // namespace

Schedule training_schedule(const ScheduleOptions& options) {
  const ScheduleOptions staged = with_stages(options);
  const std::shared_ptr<const PassLists> passes = passes_of(*staged.stages.schedule, staged.stages.shape);
  return Stage(staged, *passes).training();
}

Schedule evaluation_schedule(const ScheduleOptions& options) {
  const ScheduleOptions staged = with_stages(options);
  const PassLists passes = forward_passes(staged.stages);
  return Stage(staged, passes).without_backward(true);
}

Schedule inference_schedule(const ScheduleOptions& options) {
  const ScheduleOptions staged = with_stages(options);
  const PassLists passes = forward_passes(staged.stages);
  return Stage(staged, passes).without_backward(false);
}

}  // namespace gptrain::schedule
