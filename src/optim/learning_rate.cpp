#include "optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gptrain::inline optim {

double learning_rate(const LrCourse& course, int64_t step) {
  const double lr = course.lr, min_lr = course.min_lr;
  const int64_t steps = course.steps, warmup = course.warmup_steps;
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);

  // RETURNS the share of the decay done at this step: 0 at step `first`, 1 at the run's last.
  const auto progress = [&](int64_t first) {
    const int64_t length = steps - 1 - first;
    return length <= 0 ? 1.0 : std::clamp(static_cast<double>(step - first) / static_cast<double>(length), 0.0, 1.0);
  };
  switch (course.type) {
    case LrCurve::constant:
      return lr;
    case LrCurve::linear:
      return lr + (min_lr - lr) * progress(warmup);
    case LrCurve::cosine:
      return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress(warmup)));
    case LrCurve::wsd: {
      const int64_t decay_start = steps - course.decay_steps;
      if (step < decay_start) return lr;
      return lr + (min_lr - lr) * static_cast<double>(step - decay_start + 1) / static_cast<double>(course.decay_steps);
    }
  }
  return lr;
}

}  // namespace gptrain::optim
