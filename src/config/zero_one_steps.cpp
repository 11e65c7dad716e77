#include "config/zero_one_steps.h"

#include <algorithm>

namespace gptrain::inline config {
namespace {

// Calls body(number) for each step until `end` that updates variances, while it returns true.
template <typename Body>
void for_each_variance_step(const OptimizerConfig& optimizer, int64_t end, const Body& body) {
  int64_t number = 0;
  for (int64_t distance = 1; number < end; distance *= 2) {
    for (int64_t i = 0; i < optimizer.variance_scaler; ++i) {
      number = (number / distance + 1) * distance;
      if (number > end || !body(number)) return;
    }
  }
}

bool updates_variance(const OptimizerConfig& optimizer, int64_t number) {
  bool updates = false;
  for_each_variance_step(optimizer, number, [&](int64_t other) {
    updates = other == number;
    return !updates;
  });
  return updates;
}

}  // namespace

int64_t zero_one_distance(const OptimizerConfig& optimizer, int64_t local) {
  int64_t distance = 1;
  for (int64_t i = local / optimizer.local_scaler; i > 0 && distance < optimizer.local_most; --i) distance *= 2;
  return distance;
}

ZeroOneStep zero_one_step(const OptimizerConfig& optimizer, int64_t done, int64_t steps) {
  const int64_t number = done + 1;
  if (number <= optimizer.freeze_step)
    return updates_variance(optimizer, number) ? ZeroOneStep::variance : ZeroOneStep::moment;
  const int64_t distance = zero_one_distance(optimizer, done - optimizer.freeze_step);
  return number % distance == 0 || number == steps ? ZeroOneStep::exchange : ZeroOneStep::local;
}

ZeroOneCounts count_zero_one_steps(const OptimizerConfig& optimizer, int64_t steps) {
  ZeroOneCounts counts;
  const int64_t before = std::min(optimizer.freeze_step, steps);
  for_each_variance_step(optimizer, before, [&](int64_t) {
    ++counts.variance;
    return true;
  });
  counts.moment = before - counts.variance;
  int64_t done = before;
  while (done < steps) {
    const int64_t local = done - before, distance = zero_one_distance(optimizer, local);
    int64_t end = steps;
    if (distance < optimizer.local_most)
      end = std::min(steps, before + (local / optimizer.local_scaler + 1) * optimizer.local_scaler);
    const int64_t exchanges = end / distance - done / distance + (end == steps && end % distance != 0 ? 1 : 0);
    counts.exchange += exchanges;
    counts.local += end - done - exchanges;
    done = end;
  }
  return counts;
}

bool StepConfig::has_equal_weights_after(int64_t step, int64_t steps) const {
  if (optimizer.type != OptimizerKind::zero_one_adam) return parallel.local_steps.are_equal_after(step, steps);
  return step <= optimizer.freeze_step || zero_one_step(optimizer, step - 1, steps) == ZeroOneStep::exchange;
}

}  // namespace gptrain::config
