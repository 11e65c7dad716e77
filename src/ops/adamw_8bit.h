// AdamW with both moments stored in 8 bits each (arXiv 2110.02861). A step decodes a block's moments to f32, updates as
// AdamW does, and encodes the new moments with the block's new scale. The weights are updated with the moments before
// that rounding.
//
// Unlike in the paper, a second moment that is not zero never becomes the code of zero but the smallest other code:
// otherwise an element whose gradient is zero in a step would move by its first moment divided by eps.
#pragma once

#include <array>
#include <string_view>

#include "base/dynamic_map.h"
#include "ops/adamw.h"
#include "ops/averaged.h"

namespace gptrain::inline ops {

// REQUIRES: the range consists of whole blocks of state_block elements; segments are in the order of their offsets. The
// codes of elements outside all segments become zero.
struct AdamW8bit : AdamW {
  static constexpr std::string_view name = "adamw_8bit", averaged_name = "adamw_8bit_ema";

  // columns[0] and columns[1]: [1, elements] u8, the codes of m with a sign, and of v without one.
  std::array<Matrix, 2> scales;  // [1, elements / state_block] f32 each, in and out
  // The CPU's moments have the bits of a GPU's. It is slower; without it, last bits of decoded moments differ.
  bool by_tables = false;
};

using AdamW8bitEma = Averaged<AdamW8bit>;

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_BLOCK_UPDATE(X) X(AdamW8bit) X(AdamW8bitEma)
