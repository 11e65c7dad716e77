#include "schedule/schedule.h"

#include <algorithm>

namespace gptrain {

std::string_view action_name(ActionKind kind) {
  constexpr std::array<std::string_view, num_action_kinds> names = {
      "forward",  "loss",   "evaluate",      "recompute", "backward_input",  "backward_weight",
      "backward", "gather", "await_weights", "reduce",    "await_gradients", "norm",
      "update"};
  return names[static_cast<size_t>(kind)];
}

std::string_view buffer_name(BufferKind kind) {
  constexpr std::array<std::string_view, num_buffer_kinds> names = {
      "batch",           "stream",  "saved_for_input",  "saved_for_weight", "gradients",
      "stream_gradient", "weights", "prepared_weights", "whole_gradients",  "narrow_gradients"};
  return names[static_cast<size_t>(kind)];
}

std::string_view operand_name(Operand operand) {
  constexpr std::array<std::string_view, num_operands> names = {
      "batch",    "input",   "output",  "saved_for_input", "saved_for_weight", "gradients",
      "d_output", "d_input", "weights", "whole_gradients", "prepared_weights", "narrow_gradients"};
  return names[static_cast<size_t>(operand)];
}

namespace {

Access forward_access(Operand operand, const UnitTraits& unit) {
  switch (operand) {
    case Operand::batch:
      return unit.kind == UnitKind::embedding ? Access::write : Access::read;  // it brings the micro-batch in
    case Operand::input:
    case Operand::weights:
      return Access::read;
    case Operand::output:
    case Operand::saved_for_input:
    case Operand::saved_for_weight:
    case Operand::prepared_weights:
      return Access::write;
    default:
      return Access::none;
  }
}

Access loss_access(Operand operand, bool training) {
  switch (operand) {
    case Operand::batch:
    case Operand::saved_for_input:
    case Operand::saved_for_weight:
    case Operand::weights:
      return Access::read;
    case Operand::gradients:
    case Operand::whole_gradients:
      return training ? Access::write : Access::none;
    default:
      return Access::none;
  }
}

Access backward_input_access(Operand operand, const UnitTraits& unit) {
  switch (operand) {
    case Operand::batch:
    case Operand::input:
    case Operand::saved_for_input:
    case Operand::saved_for_weight:
    case Operand::weights:
    case Operand::d_output:
      return Access::read;
    case Operand::gradients:
      return unit.kind == UnitKind::head ? Access::read_write : Access::write;  // the loss has begun the head's
    case Operand::d_input:
    case Operand::prepared_weights:
      return Access::write;
    default:
      return Access::none;
  }
}

Access backward_weight_access(Operand operand, const UnitTraits& unit) {
  switch (operand) {
    case Operand::batch:
    case Operand::saved_for_weight:
    case Operand::gradients:
      return Access::read;
    case Operand::d_output:
      return unit.weight_reads_d_output ? Access::read : Access::none;
    case Operand::whole_gradients:
      return Access::write;
    default:
      return Access::none;
  }
}

Access sum_access(Operand operand, bool begins) {
  if (operand == Operand::whole_gradients) return begins ? Access::read : Access::read_write;
  if (operand == Operand::narrow_gradients) return begins ? Access::write : Access::read;
  return Access::none;
}

}  // namespace

namespace {

// Whether the schedule has such a buffer for the unit at all.
bool exists(const Schedule& schedule, const UnitTraits& unit, Operand operand) {
  const bool embedding = unit.kind == UnitKind::embedding;
  const bool head = unit.kind == UnitKind::head;
  switch (operand) {
    case Operand::batch:
      return true;
    case Operand::input:
    case Operand::d_input:
    case Operand::saved_for_input:
    case Operand::saved_for_weight:
    case Operand::gradients:
      return !embedding;
    case Operand::output:
    case Operand::d_output:
      return !head;
    case Operand::prepared_weights:
      return unit.prepares_weights;
    case Operand::weights:
      return schedule.options.zero == 3;
    case Operand::whole_gradients:
      return schedule.options.zero >= 2;
    case Operand::narrow_gradients:
      return schedule.options.narrow_sums;
    case Operand::count:
      break;
  }
  return false;
}

}  // namespace

Access access(const Schedule& schedule, ActionKind kind, int32_t unit, Operand operand) {
  if (unit < 0 || !exists(schedule, schedule.traits(unit), operand)) return Access::none;
  const UnitTraits& traits = schedule.traits(unit);
  switch (kind) {
    case ActionKind::forward:
      return forward_access(operand, traits);
    case ActionKind::recompute:
      return operand == Operand::output ? Access::none : forward_access(operand, traits);
    case ActionKind::loss:
      return loss_access(operand, true);
    case ActionKind::evaluate:
      return loss_access(operand, false);
    case ActionKind::backward_input:
      return backward_input_access(operand, traits);
    case ActionKind::backward_weight:
      return backward_weight_access(operand, traits);
    case ActionKind::backward:
      // What the first half leaves for the second is written in between.
      if (operand == Operand::gradients) return backward_input_access(operand, traits);
      return std::max(backward_input_access(operand, traits), backward_weight_access(operand, traits));
    case ActionKind::gather:
      return operand == Operand::weights ? Access::write : Access::none;
    case ActionKind::await_weights:
      return operand == Operand::weights ? Access::read_write : Access::none;
    case ActionKind::reduce:
      return sum_access(operand, true);
    case ActionKind::await_gradients:
      return sum_access(operand, false);
    case ActionKind::norm:
    case ActionKind::update:
      return Access::none;
  }
  return Access::none;
}

void set_lifetimes(Schedule& schedule) {
  for (Buffer& buffer : schedule.buffers) buffer.first = buffer.last = -1;
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    for (const int32_t index : schedule.actions[i].buffers) {
      if (index < 0) continue;
      Buffer& buffer = schedule.buffers[static_cast<size_t>(index)];
      if (buffer.first < 0) buffer.first = static_cast<int32_t>(i);
      buffer.last = static_cast<int32_t>(i);
    }
  }
}

}  // namespace gptrain
