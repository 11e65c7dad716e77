// Memory of a layout: the bytes that LayoutEstimator counts, and the layers that are treated to save them.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "planner/layout_estimate.h"

namespace gptrain::inline planner {

int64_t LayoutEstimator::bytes_of_stage(const UnitBytes& bytes, int64_t PartBytes::*part, const LayoutChunks& chunks,
                                        size_t stage) const {
  int64_t sum = 0;
  const std::vector<int64_t>& kinds = chunks.kinds_of_stages[stage];
  for (size_t kind = 0; kind < kinds.size(); ++kind) sum += kinds[kind] * (bytes.blocks[kind].*part);
  const bool has_head = chunks.has_head(stage);
  if (chunks.has_embedding(stage) || (has_head && config_.model.tied_head)) sum += bytes.embedding.*part;
  if (has_head) sum += bytes.head.*part;
  return sum;
}

int64_t LayoutEstimator::parameter_bytes(const UnitBytes& bytes, const LayoutChunks& chunks, size_t stage) const {
  return bytes_of_stage(bytes, &PartBytes::parameters, chunks, stage);
}

LayoutEstimator::Held LayoutEstimator::held(const RunLayout& layout, const LayoutChunks& lies) {
  const bool splits = lies.stages.schedule->splits_backward;
  const bool has_plain = layout.recompute == RecomputeKind::none || layout.mixes_recomputation();
  const bool has_recomputed = layout.recompute != RecomputeKind::none;
  const RecomputeKind any = has_plain ? RecomputeKind::none : layout.recomputed_kind();
  std::vector<MeanBytes> of_kinds;
  for (size_t kind = 0; kind < parts_.kinds().kinds.size(); ++kind) {
    const MicroBatchCosts& costs = parts_.micro_batch(layout, any, splits, kind);
    of_kinds.push_back(
        {.plain = has_plain ? costs.held_bytes : 0,
         .recomputed =
             has_recomputed ? parts_.micro_batch(layout, layout.recomputed_kind(), splits, kind).held_bytes : 0,
         .for_weights = costs.held_for_weight_bytes,
         .record = costs.record_bytes});
  }
  Held held{.recompute = any,
            .outside_bytes = parts_.micro_batch(layout, any, splits).outside_bytes,
            .of_chunk = {},
            .passes = passes_.of_stages(layout, lies)};
  held.of_chunk.reserve(lies.layers.size());
  for (size_t chunk = 0; chunk < lies.layers.size(); ++chunk) {
    const auto mean = [&](int64_t MeanBytes::*bytes) {
      int64_t sum = 0;
      for (size_t kind = 0; kind < of_kinds.size(); ++kind) sum += lies.of_kinds[chunk][kind] * (of_kinds[kind].*bytes);
      return sum / std::max<int64_t>(lies.layers[chunk], 1);
    };
    held.of_chunk.push_back({.plain = mean(&MeanBytes::plain),
                             .recomputed = mean(&MeanBytes::recomputed),
                             .for_weights = mean(&MeanBytes::for_weights),
                             .record = mean(&MeanBytes::record)});
  }
  return held;
}

int64_t LayoutEstimator::activation_bytes(const RunLayout& layout, const LayoutChunks& lies, const Held& held,
                                          size_t stage) {
  const std::vector<int32_t>& own = lies.of_stage[stage];
  const InFlight& counts = held.passes[stage].most;
  const bool all_in_flight = layout.schedule == PipelineOrder::gpipe && layout.pipeline > 1;
  int64_t sum = 0, copied_back = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto chunk = static_cast<size_t>(own[i]);
    const MeanBytes& of_block = held.of_chunk[chunk];
    const int64_t recomputed = recomputed_layers(layout, lies, chunk);
    const int64_t of_chunk = recomputed * of_block.recomputed + (lies.layers[chunk] - recomputed) * of_block.plain;
    const int64_t micro_batches = all_in_flight ? layout.accumulation : static_cast<int64_t>(counts.whole[i]);
    const int64_t away = offloaded_layers(layout, lies, chunk, held.recompute, true);
    sum += micro_batches * (of_chunk - away * (recomputed > 0 ? of_block.recomputed : of_block.plain));
    sum += counts.for_weights[i] * lies.layers[chunk] * of_block.for_weights;
    copied_back = std::max(copied_back, std::min<int64_t>(2, lies.layers[chunk]) * of_block.record);
  }
  // The backward pass reads one block's saved activations while those of the next one are copied back.
  if (layout.offload == offload::all) sum += copied_back;
  return sum;
}

int64_t LayoutEstimator::recomputed_layers(const RunLayout& layout, const LayoutChunks& lies, size_t chunk) {
  const int64_t layers = lies.layers[chunk];
  const auto before = [&](int64_t layer) {
    return (layer + layout.recompute_interval - 1) / layout.recompute_interval;
  };
  switch (layout.recompute) {
    case RecomputeKind::none:
      return 0;
    case RecomputeKind::selective:
    case RecomputeKind::ffn:
    case RecomputeKind::block:
      return layers;
    case RecomputeKind::every_nth:
      return before(lies.first_layers[chunk] + layers) - before(lies.first_layers[chunk]);
    case RecomputeKind::optimal:
      break;
  }
  throw std::logic_error("the recomputed blocks are chosen by bytes");
}

std::vector<double> LayoutEstimator::recomputed_of_kinds(const RunLayout& layout, const LayoutChunks& lies,
                                                         size_t chunk, const LayerKinds& kinds, int64_t recomputed) {
  const std::vector<int64_t>& counts = lies.of_kinds[chunk];
  std::vector<double> of_kinds(counts.size());
  const int64_t first = lies.first_layers[chunk], layers = lies.layers[chunk];
  if (layout.recompute == RecomputeKind::every_nth) {
    for (int64_t layer = first; layer < first + layers; ++layer)
      of_kinds[kinds.of(layer)] += layer % layout.recompute_interval == 0 ? 1 : 0;
    return of_kinds;
  }
  for (size_t kind = 0; kind < counts.size(); ++kind)
    of_kinds[kind] = static_cast<double>(recomputed * counts[kind]) / static_cast<double>(layers);
  return of_kinds;
}

LayoutEstimator::HeldAtEnds LayoutEstimator::held_at_ends(const RunLayout& layout, const LayoutChunks& lies) {
  RunLayout end = layout;
  const auto held_with = [&](RecomputeKind recompute) {
    end.recompute = recompute;
    return held(end, lies);
  };
  return {.plain = held_with(RecomputeKind::none), .recomputed = held_with(RecomputeKind::block)};
}

LayoutEstimator::FreedLayers LayoutEstimator::optimal_layers(const RunLayout& layout, const LayoutChunks& lies,
                                                             size_t chunk, const HeldAtEnds& held) {
  const int64_t layers = lies.layers[chunk];
  const RecomputeKind plain = layout.plain_kind();
  const auto stage = static_cast<size_t>(lies.stages.stage_of_chunk(static_cast<int32_t>(chunk)));
  RunLayout fixed = layout;
  const auto bytes_with = [&](RecomputeKind recompute, auto offloaded) {
    fixed.recompute = recompute;
    fixed.offload = offloaded;
    return stage_bytes(fixed, lies, recompute == RecomputeKind::none ? held.plain : held.recomputed, stage);
  };
  int64_t bytes = bytes_with(RecomputeKind::none, offload::none);
  const int64_t budget = config_.memory.activation_budget;
  int64_t over = budget == 0 ? bytes - device_bytes_ : activation_bytes(fixed, lies, held.plain, stage) - budget;
  // Returns how many of `of_layers` layers to treat to remove the excess `over`, if treating all leaves `least` bytes.
  const auto freed = [&](int64_t of_layers, int64_t least) {
    const int64_t most = std::max<int64_t>(bytes - least, 0);
    const double share = over <= 0 || most == 0 ? 0 : static_cast<double>(over) / static_cast<double>(most);
    over -= most;
    bytes -= most;
    return std::min(of_layers, static_cast<int64_t>(std::ceil(share * static_cast<double>(of_layers))));
  };
  FreedLayers counts;
  const bool copies = layout.offload == offload::optimal;
  const auto hidden = copies ? static_cast<int64_t>(hidden_layers(layout, lies, chunk, plain)) : 0;
  if (hidden > 0) {
    const bool splits = lies.stages.schedule->splits_backward;
    const int64_t on_their_way = std::min<int64_t>(2, layers) * parts_.micro_batch(layout, plain, splits).record_bytes;
    counts.copied = freed(hidden, bytes_with(RecomputeKind::none, offload::of_blocks(hidden)) + on_their_way);
  }
  counts.recomputed = freed(layers - counts.copied, bytes_with(RecomputeKind::block, offload::of_blocks(hidden)));
  if (copies) counts.copied_inputs = freed(counts.recomputed, bytes_with(RecomputeKind::block, offload::all));
  return counts;
}

double LayoutEstimator::hidden_layers(const RunLayout& layout, const LayoutChunks& lies, size_t chunk,
                                      RecomputeKind recompute) {
  double hidden = 0;
  for (size_t kind = 0; kind < lies.of_kinds[chunk].size(); ++kind) {
    const auto layers = static_cast<double>(lies.of_kinds[chunk][kind]);
    if (layers > 0)
      hidden +=
          layers * parts_.micro_batch(layout, recompute, lies.stages.schedule->splits_backward, kind).hidden_share;
  }
  return hidden;
}

int64_t LayoutEstimator::offloaded_layers(const RunLayout& layout, const LayoutChunks& lies, size_t chunk,
                                          RecomputeKind recompute, bool at_most) {
  const int64_t layers = lies.layers[chunk];
  if (layout.offload.is_number()) return std::min(layout.offload.blocks(), layers);
  if (layout.offload == offload::all) return layers;
  const double hidden = hidden_layers(layout, lies, chunk, recompute);
  constexpr double more = 1.1;  // copies also run beside the stage's first and last passes
  return at_most ? std::min(layers, static_cast<int64_t>(more * hidden) + 1) : static_cast<int64_t>(hidden);
}

int64_t LayoutEstimator::stage_bytes(const RunLayout& layout, const LayoutChunks& lies, const Held& of_blocks,
                                     size_t stage) {
  const UnitBytes& bytes = parts_.bytes(layout);
  int64_t sum =
      parameter_bytes(bytes, lies, stage) + activation_bytes(layout, lies, of_blocks, stage) + of_blocks.outside_bytes;
  const std::vector<int64_t>& kinds = lies.kinds_of_stages[stage];
  int64_t buckets = 0;
  for (size_t kind = 0; kind < kinds.size(); ++kind)
    if (kinds[kind] > 0)
      buckets = std::max(buckets, bytes.blocks[kind].whole_gradients + bytes.blocks[kind].whole_weights);
  sum += buckets;
  if (!lies.has_head(stage)) return sum;
  int64_t workspace = 0;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    if (kinds[kind] == 0) continue;
    const bool splits = lies.stages.schedule->splits_backward;
    workspace = std::max(workspace, parts_.micro_batch(layout, of_blocks.recompute, splits, kind).workspace_bytes);
  }
  return sum + workspace;
}

LeastBytes LayoutEstimator::least_bytes(const RunLayout& layout, int64_t device_bytes) {
  const LayoutChunks& lies = passes_.chunks(layout);
  const UnitBytes& bytes = parts_.bytes(layout);
  LeastBytes most;
  const auto count = [&](size_t stage, int64_t of_stage) {
    if (of_stage > most.bytes) most = {of_stage, static_cast<int32_t>(stage)};
  };
  const auto stages = static_cast<size_t>(layout.pipeline);
  for (size_t stage = 0; stage < stages; ++stage) count(stage, parameter_bytes(bytes, lies, stage));
  if (most.bytes > device_bytes) return most;
  most = {};
  RunLayout least = layout;
  const bool is_optimal = layout.recompute == RecomputeKind::optimal;
  if (is_optimal) least.recompute = RecomputeKind::block;
  if (layout.offload == offload::optimal) least.offload = offload::all;
  const Held of_blocks = held(least, lies);
  // "optimal" may free the inputs of blocks, too. The least bytes of its activations are then the budget; without one,
  // the saved activations of one block.
  const int64_t given = config_.memory.activation_budget;
  const int64_t budget = !is_optimal ? 0 : given > 0 ? given : record_bytes(layout);
  for (size_t stage = 0; stage < stages; ++stage) {
    const int64_t above =
        budget == 0 ? 0 : std::max<int64_t>(activation_bytes(least, lies, of_blocks, stage) - budget, 0);
    count(stage, stage_bytes(least, lies, of_blocks, stage) - above);
  }
  return most;
}

int64_t LayoutEstimator::record_bytes(const RunLayout& layout) {
  const bool splits = passes_.chunks(layout).stages.schedule->splits_backward;
  return parts_.micro_batch(layout, RecomputeKind::none, splits).held_bytes;
}

}  // namespace gptrain::planner
