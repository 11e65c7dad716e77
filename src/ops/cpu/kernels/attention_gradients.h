// Shared by the kernels of attention's backward pass. Included only by them.
#pragma once

#include <cstdint>

#include "ops/cpu/kernels/attention_kernels.h"

namespace gptrain::inline ops {
namespace {

// Probabilities after dropout, p, and gradients of q k^T, ds, of some keys of a query.
struct KeyGradients {
  Vec p, ds;
};

// The factors of a head's scores.
struct ScoreFactors {
  float scale, softcap, after_cap;

  explicit ScoreFactors(const AttentionHead& head)
      : scale(head.scale), softcap(head.softcap), after_cap(factor_after_cap(head)) {}
  // RETURNS the derivative of a capped score by q k^T. A hidden score is minus infinity, and its derivative 0.
  Vec slope(Vec score) const {
    if (softcap == 0.0F) return broadcast(scale);
    const Vec t = score * (1.0F / softcap);
    const Vec bounded = t < -1.0F ? broadcast(-1.0F) : t;
    return (1.0F - bounded * bounded) * scale;
  }
};

// Computes them from q k^T after cap_scores, and d_o v^T. `dropped`: dropout's factors; nullptr: no dropout.
inline KeyGradients softmax_gradients(Vec score, Vec dp, const float* dropped, Vec lse, Vec delta,
                                      const ScoreFactors& factors) {
  const Vec p = exp2((score * factors.after_cap - lse) * log2_e);
  const Vec slope = factors.slope(score);
  if (dropped == nullptr) return {p, p * (dp - delta) * slope};
  const Vec factor = load(dropped);
  return {p * factor, p * (dp * factor - delta) * slope};
}

// A tile of scores in backward, with its queries' statistics.
struct GradientTile : ScoreTile {
  const float *lse, *delta;  // point at the first query's values
  const TileMask& mask;
};

// A tile of keys in backward, packed.
struct PackedKeys {
  const Unit *k, *v;   // for scores: by column or, for AMX tiles, by row
  const Unit* k_rows;  // for dq; nullptr: the tile is not packed
};

// A tile of keys in backward with the sums of its gradients.
struct GradientKeys {
  KeyTile key;
  int64_t keys;
  PackedKeys packed;
  float *dk, *dv;
  bool adds;  // to dk and dv; false: overwrites them
};

}  // namespace
}  // namespace gptrain::ops
