#include "schedule/schedule.h"

#include <algorithm>
#include <optional>

#include "base/enum_array.h"

namespace gptrain::inline schedule {

std::string_view action_name(ActionKind kind) {
  constexpr EnumArray<ActionKind, std::string_view, num_action_kinds> names = {"load",
                                                                               "forward",
                                                                               "loss",
                                                                               "evaluate",
                                                                               "forward_again",
                                                                               "recompute",
                                                                               "backward_input",
                                                                               "backward_weight",
                                                                               "backward",
                                                                               "gather",
                                                                               "await_weights",
                                                                               "reduce",
                                                                               "reduce_on",
                                                                               "await_gradients",
                                                                               "keep_gradients",
                                                                               "send_output",
                                                                               "await_output_sent",
                                                                               "receive_input",
                                                                               "await_input",
                                                                               "send_d_input",
                                                                               "await_d_input_sent",
                                                                               "receive_d_output",
                                                                               "await_d_output",
                                                                               "offload",
                                                                               "await_offloaded",
                                                                               "fetch",
                                                                               "await_fetched",
                                                                               "sum_tied",
                                                                               "norm",
                                                                               "update",
                                                                               "average"};
  return names[kind];
}

std::string_view buffer_name(BufferKind kind) {
  constexpr EnumArray<BufferKind, std::string_view, num_buffer_kinds> names = {
      "batch",           "stream",           "kept",
      "saved_for_input", "saved_for_weight", "gradients",
      "stream_gradient", "weights",          "prepared_weights",
      "whole_gradients", "narrow_gradients", "offloaded"};
  return names[kind];
}

std::string_view operand_name(Operand operand) {
  constexpr EnumArray<Operand, std::string_view, num_operands> names = {"batch",
                                                                        "input",
                                                                        "output",
                                                                        "kept",
                                                                        "saved_for_input",
                                                                        "saved_for_weight",
                                                                        "gradients",
                                                                        "d_output",
                                                                        "d_input",
                                                                        "weights",
                                                                        "whole_gradients",
                                                                        "prepared_weights",
                                                                        "narrow_gradients",
                                                                        "host"};
  return names[operand];
}

OperandSet record_of(const UnitTraits& unit) {
  if (unit.offload.part == OffloadedPart::input) return {Operand::input};
  const auto use = [&](UnitPass pass) -> const OperandUse& { return unit.uses[pass]; };
  OperandSet record;
  for (const Operand operand : record_operands) {
    const bool is_recomputed = unit.recomputed && use(UnitPass::recompute).writes.contains(operand);
    const bool is_read = (unit.recomputed && use(UnitPass::recompute).reads.contains(operand)) ||
                         use(UnitPass::backward_input).reads.contains(operand) ||
                         use(UnitPass::backward_weight).reads.contains(operand);
    const OperandUse& forward = use(UnitPass::forward);
    const bool is_there = forward.reads.contains(operand) || forward.writes.contains(operand);
    if (is_there && is_read && !is_recomputed) record.add(operand);
  }
  return record;
}

namespace {

Access access_of(const OperandUse& use, Operand operand) {
  const bool reads = use.reads.contains(operand);
  if (use.writes.contains(operand)) return reads ? Access::read_write : Access::write;
  return reads ? Access::read : Access::none;
}

// The passes of a unit that an action consists of: `first`, and backward_weight after it if `and_weight`.
struct Passes {
  UnitPass first;
  bool and_weight = false;
};
std::optional<Passes> passes_of_kind(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::recompute_output:
      return Passes{UnitPass::forward};
    case ActionKind::loss:
      return Passes{UnitPass::loss};
    case ActionKind::evaluate:
      return Passes{UnitPass::evaluate};
    case ActionKind::recompute:
      return Passes{UnitPass::recompute};
    case ActionKind::backward_input:
      return Passes{UnitPass::backward_input};
    case ActionKind::backward_weight:
      return Passes{UnitPass::backward_weight};
    case ActionKind::backward:
      return Passes{UnitPass::backward_input, true};
    default:
      return std::nullopt;
  }
}

Access access_by_unit(const UnitTraits& unit, Passes passes, Operand operand) {
  const auto access_in = [&](UnitPass pass) { return access_of(unit.uses[pass], operand); };
  const Access first = access_in(passes.first);
  // A whole backward pass writes `gradients` before it reads them.
  if (!passes.and_weight || operand == Operand::gradients) return first;
  return std::max(first, access_in(UnitPass::backward_weight));
}

// Access to weights and gradients that have buffers of the schedule.
Access access_to_parameters(Passes passes, Operand operand) {
  const bool weight = passes.first == UnitPass::backward_weight;
  switch (operand) {
    case Operand::weights:
      return weight ? Access::none : Access::read;
    case Operand::whole_gradients:
      return weight || passes.and_weight || passes.first == UnitPass::loss ? Access::write : Access::none;
    case Operand::prepared_weights:
      return weight || passes.first == UnitPass::loss || passes.first == UnitPass::evaluate ? Access::none
                                                                                            : Access::write;
    default:
      return Access::none;
  }
}

Access sum_access(ActionKind kind, Operand operand) {
  const bool begins = kind == ActionKind::reduce;
  if (operand == Operand::whole_gradients) return begins ? Access::read : Access::read_write;
  if (operand != Operand::narrow_gradients) return Access::none;
  return begins ? Access::write : kind == ActionKind::reduce_on ? Access::read_write : Access::read;
}

// Access of the actions that copy the unit's record.
Access copy_access(const UnitTraits& unit, ActionKind kind, Operand operand) {
  const bool to_host = kind == ActionKind::offload || kind == ActionKind::await_offloaded;
  const bool begins = kind == ActionKind::offload || kind == ActionKind::fetch;
  const bool of_host = operand == Operand::host;
  if (!of_host && !record_of(unit).contains(operand)) return Access::none;
  if (of_host != to_host) return Access::read;
  return begins ? Access::write : Access::read_write;
}

// Whether the schedule has buffers of this kind for the unit's parameters.
bool has_parameters(const Schedule& schedule, const UnitTraits& unit, Operand operand) {
  switch (operand) {
    case Operand::weights:
      return schedule.options.flow.gathers_weights();
    case Operand::whole_gradients:
      return schedule.options.has_gradient_buckets();
    case Operand::prepared_weights:
      return unit.prepares_weights;
    case Operand::narrow_gradients:
      return schedule.options.narrow_sums;
    default:
      return false;
  }
}

}  // namespace

std::optional<Transfer> transfer_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::send_output:
    case ActionKind::await_output_sent:
      return Transfer{Operand::output, true, kind == ActionKind::send_output};
    case ActionKind::receive_input:
    case ActionKind::await_input:
      return Transfer{Operand::input, false, kind == ActionKind::receive_input};
    case ActionKind::send_d_input:
    case ActionKind::await_d_input_sent:
      return Transfer{Operand::d_input, true, kind == ActionKind::send_d_input};
    case ActionKind::receive_d_output:
    case ActionKind::await_d_output:
      return Transfer{Operand::d_output, false, kind == ActionKind::receive_d_output};
    default:
      return std::nullopt;
  }
}

StageMessage message_of(const Stages& stages, ActionKind kind, int32_t micro_batch, int32_t unit) {
  const Operand operand = transfer_of(kind).value().operand;
  const int32_t chunk = stages.chunk_of(unit);
  switch (operand) {
    case Operand::input:
      return {false, chunk - 1, micro_batch};
    case Operand::d_output:
      return {true, chunk + 1, micro_batch};
    default:
      return {operand == Operand::d_input, chunk, micro_batch};
  }
}

Access access(const Schedule& schedule, ActionKind kind, int32_t unit, Operand operand) {
  if (kind == ActionKind::load) return operand == Operand::batch ? Access::write : Access::none;
  if (unit < 0) return Access::none;
  if (const std::optional<Transfer> transfer = transfer_of(kind)) {
    if (operand != transfer->operand) return Access::none;
    if (transfer->sends) return Access::read;
    return transfer->begins ? Access::write : Access::read_write;
  }
  const UnitTraits& traits = schedule.traits(unit);
  if (copies_record(kind)) return copy_access(traits, kind, operand);
  const std::optional<Passes> passes = passes_of_kind(kind);
  if (passes.has_value() && operand <= Operand::d_input) return access_by_unit(traits, *passes, operand);
  if (!has_parameters(schedule, traits, operand)) return Access::none;
  if (passes.has_value()) return access_to_parameters(*passes, operand);
  switch (kind) {
    case ActionKind::gather:
      return operand == Operand::weights ? Access::write : Access::none;
    case ActionKind::await_weights:
      return operand == Operand::weights ? Access::read_write : Access::none;
    case ActionKind::reduce:
    case ActionKind::reduce_on:
    case ActionKind::await_gradients:
      return sum_access(kind, operand);
    case ActionKind::keep_gradients:
      return operand == Operand::whole_gradients ? Access::read : Access::none;
    default:
      return Access::none;
  }
}

void set_lifetimes(Schedule& schedule) {
  for (Buffer& buffer : schedule.buffers) buffer.first = buffer.last = -1;
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    for (const int32_t index : schedule.actions[i].buffers) {
      if (index < 0) continue;
      Buffer& buffer = schedule.buffers[index];
      if (buffer.first < 0) buffer.first = static_cast<int32_t>(i);
      buffer.last = static_cast<int32_t>(i);
    }
  }
}

}  // namespace gptrain::schedule
