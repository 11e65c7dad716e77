// Choices that the layers of a model read, each in its own part: which values they keep, and in which form.
#pragma once

#include <cstdint>

#include "base/kinds.h"
#include "config/run_config.h"

namespace gptrain::inline schedule {

// Storage format of a tensor that a layer saves. Each is a row of the table in model/codec.cpp.
enum class Codec : uint8_t {
  plain,
  // Transposed in an FP8 format, as a weight's gradient reads it, then its inverse scale (Quantize in ops/fp8_ops.h).
  fp8,
  // 8-bit codes, then the scales of their blocks (ops/block_codes.h).
  blocks,
  // Rounded to a narrower dtype.
  rounded,
};

struct LayerChoices {
  int64_t loss_chunk_tokens = 1;     // rows of logits that exist at a time
  int code_bits = 0;                 // bits of the activation's derivative (ops/few_bits.h); 0: its input is saved
  Codec input_codec = Codec::plain;  // format of the inputs of linears and norms
  ProjectionConfig projection = {};  // projection of the inputs of linears
  SavedPart saved_part = SavedPart::products;  // part that blocks with UnitChoice::saves_part save
};

}  // namespace gptrain::schedule
