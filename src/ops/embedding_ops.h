// Ops of the embedding. Notation: ops/ops.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "base/token_rows.h"
#include "ops/dropout.h"

namespace gptrain::inline ops {

// x[n] = token_scale * token_table[tokens[n]] + position_table[t], t the row's token (TokenRows), then dropout. Tables
// C, x R. The position table is optional.
// The token table may be a slice of the vocabulary, rows [first_token, first_token + rows) of `num_tokens`. Tokens
// outside the slice contribute zero, so x is the sum over the slices (dropout is linear).
struct EmbeddingForward {
  static constexpr std::string_view name = "embedding_forward";
  const int32_t* tokens;  // [N]
  TokenRows token_rows;
  Matrix token_table;     // [Vp, h]
  Matrix position_table;  // [>= token_rows.end(), h] or not given
  Dropout dropout;
  Matrix x;  // [N, h] out
  int64_t first_token = 0;
  int64_t num_tokens = 0;  // 0: the table is whole
  double token_scale = 1;
};

// d_token_table[v] (+)= sum over n with tokens[n] = v of token_scale * dropout'(dx[n]); d_position_table[t] (+)= sum
// over the rows n of token t of dropout'(dx[n]). Gradients are f32, sums in row order. accumulate_token false
// overwrites every row of the token table's gradient, accumulate_position false every row of the position table's,
// those of tokens without rows included. The token table may be a slice, as in EmbeddingForward.
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  const int32_t* tokens;
  TokenRows token_rows;
  Matrix dx;  // [N, h] R
  Dropout dropout;
  Matrix d_token_table;     // [Vp, h] f32
  Matrix d_position_table;  // [>= token_rows.end(), h] f32 or not given
  bool accumulate_token;
  bool accumulate_position;
  int64_t first_token = 0;
  int64_t num_tokens = 0;  // 0: the table is whole
  double token_scale = 1;
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_EMBEDDING_OP(X) X(EmbeddingForward) X(EmbeddingBackward)
