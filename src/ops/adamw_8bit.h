// AdamW whose two moments are kept in 8 bits each (arXiv 2110.02861). In a step a block's moments become f32 numbers,
// the update is AdamW's with these, and they are put into codes again, under the new scale of the block. The step itself
// is of the moments before that rounding.
//
// Unlike in the paper a second moment that is not zero never becomes the code of zero, but that of the smallest value:
// else an element whose gradient is zero in a step would move by its first moment over eps.
#pragma once

#include <array>
#include <string_view>

#include "ops/adamw.h"
#include "ops/averaged.h"
#include "base/dynamic_map.h"

namespace gptrain {

// Elements come in whole blocks of state_block, which begin with the range. Those of a block that are in no segment
// become zero in the codes. Segments are in the order of their offsets.
struct AdamW8bit : AdamW {
  static constexpr std::string_view name = "adamw_8bit", averaged_name = "adamw_8bit_ema";

  // columns[0] and columns[1]: [1, elements] u8, the codes of m with a sign, and of v without one.
  std::array<Matrix, 2> scales;  // [1, elements / state_block] f32 each, in and out
};

using AdamW8bitEma = Averaged<AdamW8bit>;

}  // namespace gptrain

#define GPTRAIN_FOR_EACH_BLOCK_UPDATE(X) X(AdamW8bit) X(AdamW8bitEma)
