#include "config/elastic.h"

#include <fmt/format.h>
#include <vector>

#include "base/units.h"
#include "config/axis_sizes.h"
#include "config/faults.h"

namespace gptrain::inline config {
int64_t training_ranks(const StepConfig& config, int64_t ranks) {
  const int64_t of_model = ranks_of_model(config.parallel);
  if (!config.parallel.elastic || ranks < of_model) return ranks;
  return of_model * (config.batch.global / (config.batch.micro * config.batch.accumulation));
}

std::string elastic_line(const StepConfig& config, int64_t ranks) {
  if (!config.parallel.elastic) return "";
  const int64_t training = training_ranks(config, ranks);
  const std::string how =
      fmt::format("batch.global = {} is {} x batch.micro {} x batch.accumulation {}", config.batch.global,
                  format_counted(training / ranks_of_model(config.parallel), "data rank"), config.batch.micro,
                  config.batch.accumulation);
  if (training == ranks) return fmt::format("elastic: {} of {} train; {}", ranks, format_counted(ranks, "rank"), how);
  const std::string idle = ranks - training == 1 ? fmt::format("rank {} idles", training)
                                                 : fmt::format("ranks {} to {} idle", training, ranks - 1);
  return fmt::format("elastic: {} of {} train, {}; {}", training, format_counted(ranks, "rank"), idle, how);
}

std::string layout_changes(const StepConfig& saved, int64_t saved_ranks, const StepConfig& config, int64_t ranks) {
  std::vector<std::string> changes;
  const auto compare = [&](const char* what, int64_t before, int64_t now) {
    if (before != now) changes.push_back(fmt::format("{} {} -> {}", what, before, now));
  };
  compare("parallel.tensor", saved.parallel.tensor, config.parallel.tensor);
  compare("parallel.context", saved.parallel.context, config.parallel.context);
  compare("parallel.expert", saved.parallel.expert, config.parallel.expert);
  compare("parallel.expert_tensor", saved.parallel.expert_tensor, config.parallel.expert_tensor);
  compare("parallel.pipeline", saved.parallel.pipeline, config.parallel.pipeline);
  compare("data ranks", saved_ranks / ranks_of_model(saved.parallel), ranks / ranks_of_model(config.parallel));
  compare("batch.micro", saved.batch.micro, config.batch.micro);
  compare("batch.accumulation", saved.batch.accumulation, config.batch.accumulation);
  if (changes.empty()) return "";
  return fmt::format("{}; batch.global stays {}", join(changes, ", "), config.batch.global);
}

}  // namespace gptrain::config
