#include "train/routing.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

#include "base/error.h"
#include "config/faults.h"

namespace gptrain::inline train {

std::vector<LayerRouting> layer_routing(const ModelConfig& model, const BatchConfig& batch,
                                        std::span<const double> sums) {
  std::vector<LayerRouting> all;
  const auto experts = static_cast<size_t>(model.moe.experts);
  const auto tokens = static_cast<double>(batch.global * model.sequence_length);
  const int64_t sequences_of_run = model.moe.aux_over == BalanceOver::micro_batch ? batch.micro : 1;
  const double runs = static_cast<double>(batch.global) / static_cast<double>(sequences_of_run);
  for (int64_t layer = 0; layer < model.num_layers && !sums.empty(); ++layer) {
    if (!model.moe.is_at(layer)) continue;
    const std::span<const double> loads = sums.first(experts);
    const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(experts);
    all.push_back({.layer = layer,
                   .most = *std::max_element(loads.begin(), loads.end()) / mean,
                   .least = *std::min_element(loads.begin(), loads.end()) / mean,
                   .aux = sums[experts] / runs,
                   .z = sums[experts + 1] / tokens,
                   .entropy = sums[experts + 2] / tokens,
                   .dropped = sums[experts + 3]});
    for (size_t expert = 0; expert < experts; ++expert) {
      if (loads[expert] < starving_share * mean) all.back().starving.push_back(static_cast<int64_t>(expert));
      all.back().loads.push_back(loads[expert] / mean);
    }
    sums = sums.subspan(num_routing_sums(model.moe.experts));
  }
  return all;
}

bool records_loads(int64_t step, int64_t steps_of_run, int64_t log_every) {
  constexpr int64_t most_records = 128;
  const int64_t logged = steps_of_run / log_every;
  return step / log_every % std::max<int64_t>(1, (logged + most_records - 1) / most_records) == 0;
}

std::string StarvingExperts::add(const std::vector<LayerRouting>& routing) {
  std::map<std::pair<int64_t, int64_t>, int64_t> still;
  std::vector<std::string> found;
  for (const LayerRouting& layer : routing) {
    std::vector<std::string> experts;
    for (const int64_t expert : layer.starving) {
      const std::pair of(layer.layer, expert);
      const int64_t steps = still[of] = (steps_.contains(of) ? steps_.at(of) : 0) + 1;
      if (steps == most_steps) experts.push_back(std::to_string(expert));
    }
    if (!experts.empty()) found.push_back(fmt::format("block {}: {}", layer.layer, join(experts, ", ")));
  }
  steps_ = std::move(still);
  if (found.empty()) return "";
  return fmt::format(
      "experts have had less than {:.0f}% of the mean load for {} logged steps: {}; a larger aux_loss of model.moe "
      "balances loads",
      100 * starving_share, most_steps, join(found, "; "));
}

void refuse_overflow(const TrainingStep& step, const std::string& when) {
  const ExpertOverflow& overflow = step.expert_overflow();
  if (!overflow.any()) return;
  const double factor = step.design().config.parallel.expert_room;
  const double needed = factor * static_cast<double>(overflow.rows) / static_cast<double>(overflow.capacity);
  throw Error(
      ExitCode::diverged,
      "{}: the experts of block {} on a rank got {} rows, but parallel.expert_room = {} makes room for {}; raise "
      "it to {:.2f} or more, or let model.moe's aux_loss balance the experts better",
      when, overflow.layer, overflow.rows, factor, overflow.capacity, std::ceil(100 * needed) / 100);
}

}  // namespace gptrain::train
