// The choices about memory that a step follows, as data: what each unit keeps of its forward pass, runs again or moves to
// the host, and how saved values are coded. The room fit makes them from the section `memory` of a config.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "schedule/unit_offload.h"

namespace gptrain {

// The choices for one unit of the model.
struct UnitChoice {
  bool keeps_part = false;  // a part of each forward pass is kept; the rest is made again from it
  // First of the units that run again right before this unit's backward pass, up to what this unit saves. Negative:
  // nothing runs again, and the backward pass reads what the forward pass left.
  int32_t again_from = -1;
  UnitOffload offload{};

  bool operator==(const UnitChoice&) const = default;
};
// By unit of the model.
using UnitChoices = std::vector<UnitChoice>;

// The choices for the ranks of one pipeline stage.
struct StepChoices {
  UnitChoices units;               // for units of other stages: the default
  bool backward_runs_again = false;  // passes are ordered as if each backward pass ran its forward pass again
  int64_t loss_chunk_tokens = 1;   // rows of logits that exist at a time
  int code_bits = 0;               // bits of the code that replaces the input of GELU or SiLU; 0: the input is kept
  bool codes_inputs = false;       // inputs of linears and norms are kept as codes of 8 bits
  ProjectionConfig projection = {};  // of the inputs of linears
  std::string warning;             // a line about settings that do no good on the target; empty: there are none
};

}  // namespace gptrain
