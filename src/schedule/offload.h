// Copies of what offloaded units save, to the host and back: for generators.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace gptrain {

// What a unit's forward pass finds or leaves on the device that its backward pass reads: the record that is copied where
// the unit is offloaded. Not of a unit that begins to be run again before its own input.
OperandSet record_of(const UnitTraits& unit);
inline constexpr std::array<Operand, 4> record_operands = {Operand::input, Operand::kept, Operand::saved_for_input,
                                                           Operand::saved_for_weight};  // that it may have

// Whether the action copies a record: the first of two begins that, the second waits until it is over.
constexpr bool copies_record(ActionKind kind) {
  return kind >= ActionKind::offload && kind <= ActionKind::await_fetched;
}

// Adds actions and buffers around the units' passes. A record leaves after its unit's forward pass, and has as many
// passes of units to do so as lie between two offloaded units: then the device's memory is free. It comes back into other
// memory half as many passes ahead of where it is read, as backward takes longer: while one record is in use, the next is
// on its way.
void add_offloading(Schedule& schedule);

// Of the blocks of a stage, in the order of its chunks, those that are offloaded where `count` are: spread evenly, the
// first one among them. At most all.
std::vector<int32_t> offloaded_units(const Stages& stages, int64_t count);

}  // namespace gptrain
