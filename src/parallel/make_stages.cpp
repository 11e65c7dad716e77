#include "parallel/make_stages.h"

#include <algorithm>
#include <cstddef>

#include "model/spec/layer_kinds.h"

namespace gptrain::inline parallel {
namespace {

// The work of a model's layers and head, in units of the first layer's.
struct Work {
  std::vector<double> layers;
  double head = 0;

  bool is_even() const {
    return std::all_of(layers.begin(), layers.end(), [&](double layer) { return layer == layers.front(); });
  }
};

Work work_of(const ModelConfig& model) {
  const LayerKinds kinds = layer_kinds(model);
  std::vector<double> flops;
  for (const LayerKind& kind : kinds.kinds) flops.push_back(forward_flops(model, kind));
  Work work;
  for (const size_t kind : kinds.of_layers) work.layers.push_back(flops[kind] / flops.front());
  work.head = 2 * static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size) / flops.front();
  return work;
}

// Gives one layer after the other to the chunk with the least load. If several have it, the last gets the layer, as
// later stages keep fewer micro-batches. REQUIRES: all layers have the same work.
std::vector<int64_t> balance_equal(const Work& work, size_t chunks) {
  std::vector<int64_t> counts(chunks, 1);
  const auto load = [&](size_t chunk) {
    return static_cast<double>(counts[chunk]) + (chunk + 1 == chunks ? work.head : 0.0);
  };
  for (size_t left = work.layers.size() - chunks; left > 0; --left) {
    size_t least = chunks - 1;
    for (size_t chunk = chunks; chunk-- > 0;) {
      if (load(chunk) < load(least)) least = chunk;
    }
    ++counts[least];
  }
  return counts;
}

// Fills the chunks from the last to the first, each up to `most` work, with at least a layer for each. The first chunk
// gets the rest. Returns the largest load.
double fill(const Work& work, double most, std::vector<int64_t>& counts) {
  double largest = 0;
  size_t left = work.layers.size();
  for (size_t chunk = counts.size(); chunk-- > 0;) {
    double load = chunk + 1 == counts.size() ? work.head : 0.0;
    int64_t count = 0;
    while (left > chunk && (count == 0 || chunk == 0 || load + work.layers[left - 1] <= most)) {
      load += work.layers[--left];
      ++count;
    }
    counts[chunk] = count;
    largest = std::max(largest, load);
  }
  return largest;
}

// Returns the numbers of layers with the smallest largest load.
std::vector<int64_t> balance_unequal(const Work& work, size_t chunks) {
  std::vector<int64_t> counts(chunks), best(chunks);
  double low = 0, high = fill(work, 0, best);
  constexpr double precision = 1e-6;
  while (high - low > precision * high) {
    const double most = (low + high) / 2;
    const double largest = fill(work, most, counts);
    if (largest < high) {
      best = counts;
      high = largest;
    }
    if (largest > most) low = most;
  }
  return best;
}

}  // namespace

std::vector<int64_t> layers_of_chunks(const StepConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  if (!parallel.layers_per_stage.empty()) return parallel.layers_per_stage;
  const int64_t chunks = parallel.pipeline * parallel.virtual_stages;
  const int64_t layers = config.model.num_layers;
  if (layers % chunks != 0) return balanced_layers(config);
  const int64_t count = layers / chunks;
  const LayerKinds kinds = layer_kinds(config.model);
  for (int64_t first = count; first < layers; first += count)
    if (kinds.counts(first, count) != kinds.counts(0, count)) return balanced_layers(config);
  return std::vector<int64_t>(chunks, count);
}

std::vector<int64_t> balanced_layers(const StepConfig& config) {
  const auto chunks = static_cast<size_t>(config.parallel.pipeline * config.parallel.virtual_stages);
  const Work work = work_of(config.model);
  return work.is_even() ? balance_equal(work, chunks) : balance_unequal(work, chunks);
}

Stages make_stages(const StepConfig& config, int64_t stage, int64_t micro_batches, bool backward_recomputes) {
  const ParallelConfig& parallel = config.parallel;
  Stages stages;
  stages.schedule = find_pipeline_schedule(pipeline_order_names[parallel.pipeline_schedule]);
  stages.shape = {static_cast<int32_t>(parallel.pipeline), static_cast<int32_t>(parallel.virtual_stages),
                  static_cast<int32_t>(micro_batches), backward_recomputes};
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
