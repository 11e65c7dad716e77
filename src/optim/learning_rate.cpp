#include "optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gptrain {

double learning_rate(const RunConfig& config, int64_t step) {
  const LrCurveConfig& curve = config.lr_curve;
  const double lr = config.optimizer.lr;
  const int64_t steps = config.run.steps;
  if (step < curve.warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(curve.warmup_steps);

  // Share of the decay done at this step: 0 at its first step, 1 at the run's last.
  const auto progress = [&](int64_t first) {
    const int64_t length = steps - 1 - first;
    return length <= 0 ? 1.0 : std::clamp(static_cast<double>(step - first) / static_cast<double>(length), 0.0, 1.0);
  };
  switch (curve.type) {
    case LrCurve::constant:
      return lr;
    case LrCurve::linear:
      return lr + (curve.min_lr - lr) * progress(curve.warmup_steps);
    case LrCurve::cosine:
      return curve.min_lr + (lr - curve.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress(curve.warmup_steps)));
    case LrCurve::wsd: {
      const int64_t decay_start = steps - curve.decay_steps;
      if (step < decay_start) return lr;
      return lr +
             (curve.min_lr - lr) * static_cast<double>(step - decay_start + 1) / static_cast<double>(curve.decay_steps);
    }
  }
  return lr;
}

}  // namespace gptrain
