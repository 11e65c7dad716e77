// The memory that one action of a layer works on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/record.h"
#include "ops/backend.h"

namespace gptrain {

// The parameters of one layer, laid out by ParameterLayout from its unit's offset on.
struct UnitParameters {
  std::byte* weights = nullptr;    // compute dtype
  std::byte* norms = nullptr;      // f32, the unit's first norm_elements only
  std::byte* gradients = nullptr;  // f32
};

// What one action works on. N is the number of rows in the residual stream, with sequence parallelism the rank's own.
struct LayerCall {
  UnitParameters parameters;            // of the layer
  UnitParameters head_matrix;           // of the layer that holds the head's matrix: the head, or with a tied head the
                                        // embedding
  const int32_t* tokens = nullptr;      // device, [B, T]
  const int32_t* targets = nullptr;     // device, [B, T]
  const int64_t* sample_ids = nullptr;  // device, [B]
  // Device, [B, T] (see AttentionMask); null without StepShape::mask_documents.
  const int32_t* document_starts = nullptr;
  StepState* state = nullptr;            // device
  std::byte* input = nullptr;            // [N, h] R: the residual stream that enters the layer
  std::byte* output = nullptr;           // [N, h] R: that leaves it
  std::byte* kept = nullptr;             // the layer's records
  std::byte* saved_for_input = nullptr;
  std::byte* saved_for_weight = nullptr;
  std::byte* gradients = nullptr;
  std::byte* d_output = nullptr;     // carrier, [N, h] R; behind it, at the next multiple of 256 bytes, its amax,
                                     // [1, amax_parts] f32, where the layer wants that
  std::byte* d_input = nullptr;      // carrier, likewise for the layer before
  bool table_begun = false;          // the loss has written the micro-batch's share of the token table's gradient
  bool accumulate = false;           // gradients are added to; false for a step's first micro-batch
  std::byte* fp8_weights = nullptr;  // the record of FP8 linears' weights
  bool prepare_weights = false;      // the call fills that record first, as it does not hold these weights
  Workspace* workspace = nullptr;
};

// Which of the two halves of a layer's backward pass a call is. Both at once: the products of the weights' gradients
// run while the sums of the input's gradient over the tensor ranks are under way.
enum class BackwardPart : uint8_t { input, weight, both };

}  // namespace gptrain
