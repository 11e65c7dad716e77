#include "planner/layout_passes.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "fit/fixed_choices.h"
#include "parallel/make_stages.h"
#include "planner/layouts.h"

namespace gptrain::inline planner {
namespace {

InFlight most_saved(const std::vector<Pass>& passes, const LayoutChunks& chunks, size_t stage) {
  const size_t num_chunks = chunks.of_stage[stage].size();
  InFlight now{std::vector<int32_t>(num_chunks), std::vector<int32_t>(num_chunks)};
  InFlight most = now;
  const auto weight = [](const InFlight& counts) {
    return 2 * std::accumulate(counts.whole.begin(), counts.whole.end(), int64_t{0}) +
           std::accumulate(counts.for_weights.begin(), counts.for_weights.end(), int64_t{0});
  };
  for (const Pass& pass : passes) {
    const size_t index = chunks.index_in_stage(stage, pass.chunk);
    now.whole[index] += pass.kind == PassKind::forward ? 1 : pass.kind == PassKind::backward_weight ? 0 : -1;
    if (pass.kind == PassKind::backward_input) ++now.for_weights[index];
    if (pass.kind == PassKind::backward_weight) --now.for_weights[index];
    if (weight(now) > weight(most)) most = now;
  }
  return most;
}

void count_others(const std::vector<Pass>& passes, const LayoutChunks& chunks, size_t stage, StagePasses& counts) {
  const size_t num_chunks = chunks.of_stage[stage].size();
  const auto makes_gradients = [](const Pass& pass) {
    return pass.kind == PassKind::backward || pass.kind == PassKind::backward_weight;
  };
  counts.before_others.resize(num_chunks);
  std::vector<double> all(num_chunks);
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!makes_gradients(passes[i])) continue;
    const size_t index = chunks.index_in_stage(stage, passes[i].chunk);
    ++all[index];
    if (i + 1 < passes.size() && !makes_gradients(passes[i + 1])) ++counts.before_others[index];
  }
  for (size_t index = 0; index < num_chunks; ++index) counts.before_others[index] /= all[index];
}

void count_gathers(const std::vector<Pass>& passes, const LayoutChunks& chunks, size_t stage, StagePasses& counts) {
  const std::vector<int32_t>& own = chunks.of_stage[stage];
  counts.forward_gathers.resize(own.size());
  counts.backward_gathers.resize(own.size());
  std::vector<double> micro_batches(own.size());
  int64_t last = -1, before = -1;  // block used last, and the one before it
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::backward_weight) continue;
    const size_t index = chunks.index_in_stage(stage, pass.chunk);
    const bool is_forward = pass.kind == PassKind::forward;
    micro_batches[index] += is_forward ? 1 : 0;
    const int64_t first = chunks.first_layers[pass.chunk];
    const int64_t count = chunks.layers[pass.chunk];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t block_now = is_forward ? first + i : first + count - 1 - i;
      if (block_now == last) continue;
      if (block_now != before) ++(is_forward ? counts.forward_gathers : counts.backward_gathers)[index];
      before = std::exchange(last, block_now);
    }
  }
  for (size_t index = 0; index < own.size(); ++index) {
    counts.forward_gathers[index] /= micro_batches[index];
    counts.backward_gathers[index] /= micro_batches[index];
  }
}

}  // namespace

int64_t LayoutChunks::layers_of(size_t stage) const {
  int64_t sum = 0;
  for (const int32_t chunk : of_stage[stage]) sum += layers[chunk];
  return sum;
}

std::pair<int64_t, int64_t> LayoutChunks::ends_of(size_t stage) const {
  if (layers_of(stage) == 0) return {0, 0};
  int64_t first = -1, last = -1;
  for (const int32_t number : of_stage[stage]) {
    const auto chunk = static_cast<size_t>(number);
    if (layers[chunk] == 0) continue;
    if (first < 0) first = first_layers[chunk];
    last = first_layers[chunk] + layers[chunk] - 1;
  }
  return {first, last};
}

std::pair<bool, bool> LayoutChunks::receives(size_t chunk) const {
  const auto is_elsewhere = [&](size_t other) {
    return stages.stage_of_chunk(static_cast<int32_t>(other)) != stages.stage_of_chunk(static_cast<int32_t>(chunk));
  };
  return {chunk > 0 && is_elsewhere(chunk - 1), chunk + 1 < layers.size() && is_elsewhere(chunk + 1)};
}

size_t LayoutChunks::index_in_stage(size_t stage, int32_t chunk) const {
  const std::vector<int32_t>& own = of_stage[stage];
  return static_cast<size_t>(std::find(own.begin(), own.end(), chunk) - own.begin());
}

LayoutPasses::ChunksKey LayoutPasses::chunks_key(const RunLayout& layout) {
  return {.pipeline = layout.pipeline,
          .virtual_stages = layout.virtual_stages,
          .schedule = layout.schedule,
          .is_balanced = layout.is_balanced};
}

const LayoutChunks& LayoutPasses::chunks(const RunLayout& layout) {
  const ChunksKey key = chunks_key(layout);
  if (const auto found = chunks_.find(key); found != chunks_.end()) return found->second;
  LayoutChunks made;
  const RunConfig config = with_layout(config_, layout);
  made.stages = make_stages(config, 0, layout.accumulation, backward_recomputes(layout.recompute));
  made.layers = layers_of_chunks(config);
  made.of_stage.resize(layout.pipeline);
  made.kinds_of_stages.assign(made.of_stage.size(), std::vector<int64_t>(kinds_.kinds.size()));
  int64_t first = 0;
  for (size_t chunk = 0; chunk < made.layers.size(); ++chunk) {
    made.first_layers.push_back(first);
    made.of_kinds.push_back(kinds_.counts(first, made.layers[chunk]));
    first += made.layers[chunk];
    const auto number = static_cast<int32_t>(chunk);
    const auto stage = static_cast<size_t>(made.stages.stage_of_chunk(number));
    made.of_stage[stage].push_back(number);
    for (size_t kind = 0; kind < kinds_.kinds.size(); ++kind)
      made.kinds_of_stages[stage][kind] += made.of_kinds[chunk][kind];
  }
  return chunks_.emplace(key, std::move(made)).first->second;
}

const std::vector<StagePasses>& LayoutPasses::of_stages(const RunLayout& layout, const LayoutChunks& chunks) {
  // Three times as many micro-batches as stages reach a schedule's peak. GPipe's peak grows with every micro-batch:
  // LayoutEstimator counts these.
  const int64_t micro_batches = std::min(layout.accumulation, 3 * layout.pipeline);
  const bool recompute = backward_recomputes(layout.recompute);
  const PassesKey key{.chunks = chunks_key(layout), .micro_batches = micro_batches, .recompute = recompute};
  if (const auto found = passes_.find(key); found != passes_.end()) return found->second;
  const PipelineSchedule& schedule = *chunks.stages.schedule;
  PipelineShape shape = chunks.stages.shape;
  shape.micro_batches = static_cast<int32_t>(micro_batches);
  shape.recompute = recompute;
  const std::shared_ptr<const PassLists> passes = passes_of(schedule, shape);
  std::vector<StagePasses> stages(passes->size());
  for (size_t stage = 0; stage < passes->size(); ++stage) {
    stages[stage].most = most_saved((*passes)[stage], chunks, stage);
    count_others((*passes)[stage], chunks, stage, stages[stage]);
    count_gathers((*passes)[stage], chunks, stage, stages[stage]);
  }
  return passes_.emplace(key, std::move(stages)).first->second;
}

}  // namespace gptrain::planner
