// Dropout of activations and of attention probabilities, as ops take it.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace gptrain::inline ops {

// Inverted dropout: an element is kept with probability 1 - p and scaled by 1 / (1 - p). p = 0: no dropout, no random
// numbers.
//
// An element is dropped if its Philox word < drop_threshold(p). In an [N, cols] operand, element (row, column) belongs
// to the sample s of the row's sequence and to the row's token t (TokenRows), and uses word (column % 4) of
// philox(key, {column / 4, t, low(s), high(s)}). Attention probabilities use (query, key) in place of (token, column),
// and one Philox key per (layer, head): `key` is the layer's; the key of head n (global) is two words of philox(key,
// {n, 0, 0, 0}).
//
// A rank that holds only some rows of the micro-batch, or some heads, sets first_row and first_head. It then draws the
// same numbers for them as a rank that holds all.
struct Dropout {
  double p = 0;
  PhiloxKey key;
  const int64_t* sample_ids = nullptr;  // device memory, [B]: global sample numbers
  int64_t first_row = 0;                // row of the micro-batch that is the operand's row 0
  int64_t first_head = 0;               // head of the model that is the operand's head 0
};

constexpr uint32_t drop_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

}  // namespace gptrain::ops
