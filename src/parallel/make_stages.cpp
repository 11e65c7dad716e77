#include "parallel/make_stages.h"

#include <algorithm>
#include <cstddef>

namespace gptrain::inline parallel {
namespace {

// Returns the time of the head as a number of layers.
double head_in_layers(const ModelConfig& model) {
  const auto h = static_cast<double>(model.hidden_size);
  const double ffn_matrices = model.activation == ActivationKind::swiglu ? 3 : 2;
  const auto q = static_cast<double>(model.q_size());
  const double matrices = 2 * h * (q + static_cast<double>(model.kv_size())) +
                          ffn_matrices * h * static_cast<double>(model.ffn_hidden_size);
  const double layer = 2 * matrices + 2 * q * static_cast<double>(model.sequence_length);
  return 2 * h * static_cast<double>(model.vocab_size) / layer;
}

}  // namespace

std::vector<int64_t> layers_of_chunks(const StepConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  if (!parallel.layers_per_stage.empty()) return parallel.layers_per_stage;
  const int64_t chunks = parallel.pipeline * parallel.virtual_stages;
  const int64_t layers = config.model.num_layers;
  if (layers % chunks != 0) return balanced_layers(config);
  return std::vector<int64_t>(static_cast<size_t>(chunks), layers / chunks);
}

std::vector<int64_t> balanced_layers(const StepConfig& config) {
  const int64_t chunks = config.parallel.pipeline * config.parallel.virtual_stages;
  const int64_t layers = config.model.num_layers;
  std::vector<int64_t> counts(static_cast<size_t>(chunks), 1);
  // Gives one layer after the other to the chunk with the least load. If several have it, the last gets the layer, as
  // later stages keep fewer micro-batches.
  const double head = head_in_layers(config.model);
  const auto load = [&](size_t chunk) {
    return static_cast<double>(counts[chunk]) + (chunk + 1 == counts.size() ? head : 0.0);
  };
  for (int64_t left = layers - chunks; left > 0; --left) {
    size_t least = counts.size() - 1;
    for (size_t chunk = counts.size(); chunk-- > 0;) {
      if (load(chunk) < load(least)) least = chunk;
    }
    ++counts[least];
  }
  return counts;
}

Stages make_stages(const StepConfig& config, int64_t stage, int64_t micro_batches, bool backward_runs_again) {
  const ParallelConfig& parallel = config.parallel;
  Stages stages;
  stages.schedule = find_pipeline_schedule(pipeline_order_names[static_cast<size_t>(parallel.pipeline_schedule)]);
  stages.shape = {static_cast<int32_t>(parallel.pipeline), static_cast<int32_t>(parallel.virtual_stages),
                  static_cast<int32_t>(micro_batches), backward_runs_again};
  stages.stage = static_cast<int32_t>(stage);
  stages.first_units = {0};
  int64_t layers = 0;
  for (const int64_t count : layers_of_chunks(config)) {
    layers += count;
    stages.first_units.push_back(static_cast<int32_t>(layers) + 1);
  }
  ++stages.first_units.back();
  return stages;
}

}  // namespace gptrain::parallel
