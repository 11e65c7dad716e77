// The memory used by one action of a layer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/step_statistics.h"
#include "ops/step_state.h"

namespace gptrain::inline model {

class Workspace;

// The parameters of one layer. Each pointer is the start of its unit (see ParameterLayout).
struct UnitParameters {
  std::byte* weights = nullptr;    // compute dtype
  std::byte* norms = nullptr;      // f32, the unit's first norm_elements only
  std::byte* gradients = nullptr;  // f32
};

// Buffers of one action, all owned by the caller; null if the layer has no use for one. N is the number of rows in the
// residual stream; with sequence parallelism, of the rank's own rows.
struct LayerCall {
  UnitParameters parameters;         // the layer's own
  UnitParameters head_matrix;        // unit that holds the head's matrix: the head, or the embedding if they are tied
  const int32_t* tokens = nullptr;   // device, [N]
  const int32_t* targets = nullptr;  // device, [N]
  const int64_t* sample_ids = nullptr;  // device, [B]
  // Device, [B, T] (see AttentionMask); null without StepShape::mask_documents.
  const int32_t* document_starts = nullptr;
  StepState* state = nullptr;  // device
  StepStatistics statistics = {};
  float* amax_forecast = nullptr;            // device: amaxes of FP8 tensors to scale by (fp8_amax_statistic), or null
  std::byte* input = nullptr;                // [N, h] R: residual stream before the layer
  std::byte* output = nullptr;               // [N, h] R: residual stream after the layer
  std::byte* saved_for_recompute = nullptr;  // the layer's records, as the next three (see RecordKind)
  std::byte* saved_for_input = nullptr;
  std::byte* saved_for_weight = nullptr;
  std::byte* gradients = nullptr;
  // Gradients of `output` and `input`, [N, h] R; each followed, at a multiple of 256 bytes, by its amax if wanted.
  std::byte* d_output = nullptr;
  std::byte* d_input = nullptr;
  bool table_begun = false;          // the loss has already written its part of the token table's gradient
  bool accumulate = false;           // adds to gradients; false in a step's first micro-batch: overwrites them
  std::byte* fp8_weights = nullptr;  // record of linears' weights, quantized to FP8
  bool prepare_weights = false;      // true: fp8_weights does not hold these weights yet, so the call fills it first
  Workspace* workspace = nullptr;
  UnitParameters experts = {};  // the layer's experts, where they are a unit of their own
};

// Part of a layer's backward pass: the input's gradient, the weights' gradients, or both. With `both`, the products for
// the weights run while the sums of the input's gradient over the tensor ranks are in flight.
enum class BackwardPart : uint8_t { input, weight, both };

}  // namespace gptrain::model
