// The updates of 0/1 Adam (arXiv 2202.06009), without corrections of the moments' bias. With g the gradient, m and v
// the moments, a the weight at the last exchange, r the rate and u = m / (sqrt(v) + eps), 0 where v is 0:
//   variance    m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, w -= r (u + decay w)
//   moment      the same without v
//   local       m = beta1 m + (1 - beta1) g, w -= r (u + decay a), a -= r decay a
//   difference  m = share (a - w) (sqrt(v) + eps): the sum of r m over the steps since the last exchange
//   exchange    w = a - u, a = w, m = m / r, where m is the ranks' sum of differences and r the sum of those steps'
//   rates
// Where v is 0, no gradient was ever seen: m becomes 0 in the last two.
#pragma once

#include <cmath>
#include <string_view>

#include "ops/element_update.h"

namespace gptrain::inline ops {

enum class ZeroOneUpdate : uint8_t { variance, moment, local, difference, exchange };

struct ZeroOneAdam : ElementUpdate {
  static constexpr std::string_view name = "zero_one_adam";
  static constexpr size_t num_columns = 3;  // m, v, a
  class Formula;

  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  ZeroOneUpdate update = ZeroOneUpdate::variance;
  double share = 1;  // difference only: 1 / ranks
};

class ZeroOneAdam::Formula : public UpdateFactors {
 public:
  explicit Formula(const ZeroOneAdam& op)
      : UpdateFactors(op.weight_decay),
        beta1_(static_cast<float>(op.beta1)),
        new1_(static_cast<float>(1 - op.beta1)),
        beta2_(static_cast<float>(op.beta2)),
        new2_(static_cast<float>(1 - op.beta2)),
        eps_(static_cast<float>(op.eps)),
        share_(static_cast<float>(op.share)),
        update_(op.update) {}

  GPTRAIN_FORMULA float updated(float gradient, float weight, float& m, float& v, float& anchor) const {
    if (update_ == ZeroOneUpdate::difference) {
      m = v == 0 ? 0.0F : share_ * (anchor - weight) * (sqrtf(v) + eps_);
      return weight;
    }
    if (update_ == ZeroOneUpdate::exchange) {
      anchor -= direction(m, v);
      m = v == 0 ? 0.0F : m / rate_;
      return anchor;
    }
    const float scaled = gradient * scale_;
    m = fused(beta1_, m, new1_ * scaled);
    if (update_ == ZeroOneUpdate::variance) v = fused(beta2_, v, new2_ * scaled * scaled);
    if (update_ != ZeroOneUpdate::local) return fused(-decay_, weight, fused(-rate_, direction(m, v), weight));
    const float decayed = decay_ * anchor;
    anchor -= decayed;
    return fused(-rate_, direction(m, v), weight - decayed);
  }

 private:
  GPTRAIN_FORMULA float direction(float m, float v) const { return v == 0 ? 0.0F : m / (sqrtf(v) + eps_); }

  float beta1_, new1_, beta2_, new2_, eps_, share_;
  ZeroOneUpdate update_;
};

}  // namespace gptrain::ops
