// Design of a layer: a value that two layers have in common if they run the same ops.
#pragma once

#include <optional>
#include <vector>

#include "base/attention_pattern.h"
#include "base/rotary.h"
#include "model/layer_context.h"
#include "model/layer_records.h"
#include "model/spec/spec.h"

namespace gptrain::inline model {

// Everything that determines a layer's ops beside the context shared by all layers.
struct LayerDesign {
  UnitKind kind;
  bool gives_amax = false;                    // its B writes the amax of d_input
  AttentionPattern attention = {};            // pattern of a block
  std::optional<RotaryAngles> rotation = {};  // angles of a block that rotates queries and keys
  std::vector<Parameter> parameters;
  LayerRecords records;

  bool is_routed = false;  // a block with experts

  bool operator==(const LayerDesign&) const = default;
};

}  // namespace gptrain::model
