#include "train/loss_spikes.h"

#include <cmath>
#include <cstddef>
#include <numeric>

namespace gptrain::inline train {
namespace {

// Drops all but the last `size` losses.
void forget_older(std::vector<double>& window, size_t size) {
  if (window.size() > size) window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>(size));
}

}  // namespace

LossSpread spread_of(const LossHistory& losses) {
  const std::vector<double>& window = losses.window;
  const auto count = static_cast<double>(window.size());
  const double mean = std::accumulate(window.begin(), window.end(), 0.0) / count;
  double squares = 0;
  for (const double loss : window) squares += (loss - mean) * (loss - mean);
  return {mean, std::sqrt(squares / count)};
}

void add_loss(const RollbackConfig& rollback, double loss, LossHistory& losses) {
  const auto size = static_cast<size_t>(rollback.window);
  forget_older(losses.window, size);
  if (losses.window.size() == size) {
    const LossSpread spread = spread_of(losses);
    if (!std::isfinite(loss) || loss > spread.mean + rollback.spike * spread.deviation) {
      losses.above.push_back(loss);
      return;
    }
  }
  losses.above.clear();
  if (!std::isfinite(loss)) return;
  losses.window.push_back(loss);
  forget_older(losses.window, size);
}

bool is_spike(const RollbackConfig& rollback, const LossHistory& losses) {
  return rollback.is_on() && static_cast<int64_t>(losses.above.size()) >= rollback.steps;
}

void accept_spike(LossHistory& losses) {
  for (const double loss : losses.above) {
    if (std::isfinite(loss)) losses.window.push_back(loss);
  }
  losses.above.clear();
}

}  // namespace gptrain::train
