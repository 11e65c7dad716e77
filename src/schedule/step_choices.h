// Choices about the memory of a step, as data: activations that each unit keeps, recomputes or moves to the host, and
// the coding of saved values. src/fit makes them from the section `memory` of a config.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_place.h"
#include "config/parallelism.h"
#include "schedule/layer_choices.h"
#include "schedule/unit_offload.h"

namespace gptrain::inline schedule {

// The choices for one unit of the model.
struct UnitChoice {
  bool saves_part = false;  // saves a part of each forward pass and recomputes the rest from it
  // First of the units that are recomputed right before this unit's backward pass, up to the values that this unit
  // saves. Negative: nothing is recomputed, and the backward pass reads the values that the forward pass saved.
  int32_t recompute_from = -1;
  UnitOffload offload{};

  bool operator==(const UnitChoice&) const = default;
};
// Choices by unit of the model.
using UnitChoices = std::vector<UnitChoice>;

// The choices for the ranks of one pipeline stage.
struct StepChoices {
  UnitChoices units;  // units of other stages have the default
  // Place of weights that the ZeRO stage does not cut. If they are away, they lie beside the optimizer state. REQUIRES
  // then: one data rank or ZeRO 3, and all optimizer state is away.
  Residency weights = Residency::resident;
  // Sums of gradients lie beside the optimizer state. REQUIRES: all optimizer state is away; one data rank, or ZeRO 2
  // or 3; gradients in f32.
  bool gradients_away = false;
  // Updates run on the host. The weights that they write, and everything that only they read, lie there. REQUIRES: the
  // ops run in host memory, too; fp32, or bf16 with masters; no qk_clip.
  bool updates_on_host = false;
  // By unit of the model, the place of its optimizer state: MemoryPlace::device is where the update runs. Empty: there.
  std::vector<MemoryPlace> optimizer_state = {};
  int64_t landed_units = 3;  // most units on disk whose state is in memory at a time
  // Asynchronous checkpoints read state on disk from clones of its files. REQUIRES: the file systems can clone.
  bool clones_files = false;

  bool keeps_state_on_disk() const {
    return std::find(optimizer_state.begin(), optimizer_state.end(), MemoryPlace::disk) != optimizer_state.end();
  }
  bool keeps_state_away() const {
    return std::any_of(optimizer_state.begin(), optimizer_state.end(),
                       [](MemoryPlace place) { return place != MemoryPlace::device; });
  }
  // Updates run beside the next step, which computes with the weights before them. REQUIRES: all optimizer state is
  // away, weights and gradients are not, gradients are f32, ZeRO 0 to 2.
  bool updates_delayed = false;
  bool backward_recomputes = false;  // passes are ordered for backward passes that include recomputation
  LayerChoices layers = {};
  std::string warning;  // one line about settings that do no good on the target; empty if there are none
};

}  // namespace gptrain::schedule
