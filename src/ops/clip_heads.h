// QK-clip (MuonClip, arXiv 2507.20534): scales the weights of heads whose largest attention score of the step, S, is
// above a threshold t, so that the score would be t. For a query head let g = t / S, or 1 if S is not above t. With one
// head of keys for each query head both are scaled by sqrt(g). Query heads that share keys each have a g of their own:
// the keys are scaled by k = sqrt(largest g), which no head's scores need less of, and the queries by g / k. So each
// head's product of queries and keys is scaled by its own g, and no factor is above 1.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "ops/element_update.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// Weights, or biases, of one head of queries or keys.
struct HeadSegment {
  int64_t offset;  // elements from the range's start
  int64_t count;
  int64_t first_head, num_heads;  // query heads that share the keys, as indices in ClipHeads::largest
  int64_t head;                   // index of the query head; -1: the segment is the keys'

  // RETURNS the factor of the weights. A member, since other functions of a formula are not inline under nvcc.
  GPTRAIN_FORMULA float factor(const float* largest, float threshold) const {
    const auto of_head = [&](int64_t i) { return largest[i] > threshold ? threshold / largest[i] : 1.0F; };
    float most = 0;
    for (int64_t i = first_head; i < first_head + num_heads; ++i) most = of_head(i) > most ? of_head(i) : most;
    const float of_keys = std::sqrt(most);
    return head < 0 ? of_keys : of_head(head) / of_keys;
  }
};

// weights *= factor of their head. Nothing is written where the factor is 1, or if state->skip.
struct ClipHeads {
  static constexpr std::string_view name = "clip_heads";
  const HeadSegment* segments;  // device memory
  int64_t num_segments;
  double threshold;
  const StepState* state;
  Matrix largest;       // [1, n] f32
  Matrix master;        // [1, elements] f32, in and out
  Matrix weights = {};  // [1, elements] C, masters rounded, in and out; or not given (f32 training)
};

}  // namespace gptrain::ops
