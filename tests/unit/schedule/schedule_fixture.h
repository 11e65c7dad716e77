// Schedules of small models, and changes to them.
#pragma once

#include <vector>

#include "catch.h"
#include "schedule/schedule.h"

namespace gptrain::testing {

// Reads and writes of the passes of transformer-like units.
inline UnitUses uses_of(UnitKind kind) {
  using enum Operand;
  switch (kind) {
    case UnitKind::embedding:
      return {OperandUse{{batch}, {output}}, {}, {}, {}, {}, OperandUse{{batch, d_output}, {}}};
    case UnitKind::block:
      return {OperandUse{{batch, input}, {output, saved_for_input, saved_for_weight}},
              OperandUse{{batch, input}, {saved_for_input, saved_for_weight}},
              {},
              {},
              OperandUse{{batch, input, saved_for_input, saved_for_weight, d_output}, {gradients, d_input}},
              OperandUse{{saved_for_weight, gradients, d_output}, {}}};
    case UnitKind::head:
    case UnitKind::experts:  // has no passes of its own
      break;
  }
  return {OperandUse{{input}, {saved_for_input}},
          OperandUse{{input}, {saved_for_input}},
          OperandUse{{batch, saved_for_input}, {gradients}},
          OperandUse{{batch, saved_for_input}, {}},
          OperandUse{{input, saved_for_input, gradients}, {gradients, d_input}},
          OperandUse{{gradients}, {}}};
}

// An embedding, blocks and a head.
inline std::vector<UnitTraits> units_of(const std::vector<bool>& recomputed) {
  std::vector<UnitTraits> units(recomputed.size());
  for (size_t i = 0; i < units.size(); ++i) units[i].recomputed = recomputed[i];
  units.front().kind = UnitKind::embedding;
  units.back().kind = UnitKind::head;
  for (UnitTraits& unit : units) unit.uses = uses_of(unit.kind);
  return units;
}
inline std::vector<UnitTraits> plain_units(size_t count) { return units_of(std::vector<bool>(count, false)); }

// Returns the position of the n-th action of a kind and unit.
inline size_t find(const Schedule& schedule, ActionKind kind, int32_t unit, int nth = 0) {
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    if (action.kind == kind && action.unit == unit && nth-- == 0) return i;
  }
  FAIL("no such action");
  return 0;
}

// Erases an action without updating lifetimes: the checker must find the fault in the actions.
inline void erase(Schedule& schedule, size_t index) {
  schedule.actions.erase(schedule.actions.begin() + static_cast<std::ptrdiff_t>(index));
}
inline void move(Schedule& schedule, size_t from, size_t to) {
  const Action action = schedule.actions[from];
  erase(schedule, from);
  schedule.actions.insert(schedule.actions.begin() + static_cast<std::ptrdiff_t>(to), action);
}

}  // namespace gptrain::testing
