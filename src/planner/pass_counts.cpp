#include "planner/pass_counts.h"

#include <algorithm>
#include <numeric>

namespace gptrain {
namespace {

InFlight most_in_flight(const std::vector<Pass>& passes, const std::vector<int32_t>& chunks) {
  InFlight now{std::vector<int32_t>(chunks.size()), std::vector<int32_t>(chunks.size())};
  InFlight most = now;
  const auto weight = [](const InFlight& counts) {
    return 2 * std::accumulate(counts.whole.begin(), counts.whole.end(), int64_t{0}) +
           std::accumulate(counts.for_weights.begin(), counts.for_weights.end(), int64_t{0});
  };
  for (const Pass& pass : passes) {
    const size_t place = place_of_chunk(chunks, pass.chunk);
    now.whole[place] += pass.kind == PassKind::forward ? 1 : pass.kind == PassKind::backward_weight ? 0 : -1;
    if (pass.kind == PassKind::backward_input) ++now.for_weights[place];
    if (pass.kind == PassKind::backward_weight) --now.for_weights[place];
    if (weight(now) > weight(most)) most = now;
  }
  return most;
}

void count_others(const std::vector<Pass>& passes, const std::vector<int32_t>& chunks, StagePasses& counts) {
  const auto makes_gradients = [](const Pass& pass) {
    return pass.kind == PassKind::backward || pass.kind == PassKind::backward_weight;
  };
  counts.before_others.resize(chunks.size());
  std::vector<double> all(chunks.size());
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!makes_gradients(passes[i])) continue;
    const size_t place = place_of_chunk(chunks, passes[i].chunk);
    ++all[place];
    if (i + 1 < passes.size() && !makes_gradients(passes[i + 1])) ++counts.before_others[place];
  }
  for (size_t place = 0; place < chunks.size(); ++place) counts.before_others[place] /= all[place];
}

void count_gathers(const std::vector<Pass>& passes, const LayoutChunks& chunks, size_t stage, StagePasses& counts) {
  const std::vector<int32_t>& own = chunks.of_stage[stage];
  counts.forward_gathers.resize(own.size());
  counts.backward_gathers.resize(own.size());
  std::vector<double> micro_batches(own.size());
  int64_t last = -1, before = -1;  // block used last, and the one before it
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::backward_weight) continue;
    const size_t place = place_of_chunk(own, pass.chunk);
    const bool is_forward = pass.kind == PassKind::forward;
    micro_batches[place] += is_forward ? 1 : 0;
    const int64_t first = chunks.first_layers[static_cast<size_t>(pass.chunk)];
    const int64_t count = chunks.layers[static_cast<size_t>(pass.chunk)];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t block_now = is_forward ? first + i : first + count - 1 - i;
      if (block_now == last) continue;
      if (block_now != before) ++(is_forward ? counts.forward_gathers : counts.backward_gathers)[place];
      before = std::exchange(last, block_now);
    }
  }
  for (size_t place = 0; place < own.size(); ++place) {
    counts.forward_gathers[place] /= micro_batches[place];
    counts.backward_gathers[place] /= micro_batches[place];
  }
}

}  // namespace

int64_t LayoutChunks::layers_of(size_t stage) const {
  int64_t sum = 0;
  for (const int32_t chunk : of_stage[stage]) sum += layers[static_cast<size_t>(chunk)];
  return sum;
}

std::vector<int64_t> LayoutChunks::kinds_of(size_t stage) const {
  std::vector<int64_t> sums(of_kinds.front().size());
  for (const int32_t chunk : of_stage[stage])
    for (size_t kind = 0; kind < sums.size(); ++kind) sums[kind] += of_kinds[static_cast<size_t>(chunk)][kind];
  return sums;
}

std::pair<bool, bool> LayoutChunks::receives(size_t chunk) const {
  const auto is_elsewhere = [&](size_t other) {
    return stages.stage_of_chunk(static_cast<int32_t>(other)) != stages.stage_of_chunk(static_cast<int32_t>(chunk));
  };
  return {chunk > 0 && is_elsewhere(chunk - 1), chunk + 1 < layers.size() && is_elsewhere(chunk + 1)};
}

LayoutChunks make_chunks(const Stages& stages, const std::vector<int64_t>& layers, const LayerKinds& kinds) {
  LayoutChunks made;
  made.stages = stages;
  made.layers = layers;
  made.of_stage.resize(static_cast<size_t>(stages.shape.stages));
  int64_t first = 0;
  for (size_t chunk = 0; chunk < layers.size(); ++chunk) {
    made.first_layers.push_back(first);
    made.of_kinds.push_back(kinds.counts(first, layers[chunk]));
    first += layers[chunk];
    const auto number = static_cast<int32_t>(chunk);
    made.of_stage[static_cast<size_t>(stages.stage_of_chunk(number))].push_back(number);
  }
  return made;
}

std::vector<StagePasses> count_passes(const LayoutChunks& chunks, const PassLists& passes) {
  std::vector<StagePasses> stages(passes.size());
  for (size_t stage = 0; stage < passes.size(); ++stage) {
    stages[stage].most = most_in_flight(passes[stage], chunks.of_stage[stage]);
    count_others(passes[stage], chunks.of_stage[stage], stages[stage]);
    count_gathers(passes[stage], chunks, stage, stages[stage]);
  }
  return stages;
}

size_t place_of_chunk(const std::vector<int32_t>& chunks, int32_t chunk) {
  return static_cast<size_t>(std::find(chunks.begin(), chunks.end(), chunk) - chunks.begin());
}

}  // namespace gptrain
