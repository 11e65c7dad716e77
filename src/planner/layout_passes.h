// Chunks and passes of a layout's pipeline, made once for all layouts of a search that share them.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/kinds.h"
#include "config/run_config.h"
#include "model/spec/layer_kinds.h"
#include "planner/layout_search.h"
#include "schedule/stages.h"

namespace gptrain::inline planner {

// Distribution of layers over chunks, and of chunks over stages.
struct LayoutChunks {
  Stages stages;
  std::vector<int64_t> first_layers, layers;          // by chunk: first layer, number of layers
  std::vector<std::vector<int64_t>> of_kinds;         // by chunk: number of layers of each kind
  std::vector<std::vector<int32_t>> of_stage;         // by stage: its chunks
  std::vector<std::vector<int64_t>> kinds_of_stages;  // by stage: number of layers of each kind

  // Returns whether the chunk's input, and whether the gradient of its output, comes from another stage.
  std::pair<bool, bool> receives(size_t chunk) const;
  bool has_embedding(size_t stage) const { return stages.stage_of_chunk(0) == static_cast<int32_t>(stage); }
  bool has_head(size_t stage) const {
    return stages.stage_of_chunk(stages.shape.chunks() - 1) == static_cast<int32_t>(stage);
  }
  int64_t layers_of(size_t stage) const;
  // Returns the stage's first and last layer; those of the model's first layer if it has none.
  std::pair<int64_t, int64_t> ends_of(size_t stage) const;
  // Returns the index of a chunk in of_stage[stage].
  size_t index_in_stage(size_t stage, int32_t chunk) const;
};

// Micro-batches in flight, by chunk of a stage, at the moment when the stage saves the most.
struct InFlight {
  std::vector<int32_t> whole;        // between forward and backward pass
  std::vector<int32_t> for_weights;  // between the two halves of the backward pass
};

// Properties of the order of a stage's passes. Vectors have one element for each chunk of the stage.
struct StagePasses {
  InFlight most;
  // forward_gathers, backward_gathers: mean number of blocks whose weights a pass gathers with ZeRO 3 (the two blocks
  // used last still have theirs). before_others: share of the passes with weight gradients that a pass without
  // follows.
  std::vector<double> forward_gathers, backward_gathers, before_others;
};

class LayoutPasses {
 public:
  explicit LayoutPasses(RunConfig config) : config_(std::move(config)), kinds_(layer_kinds(config_.model)) {}

  const LayoutChunks& chunks(const RunLayout& layout);
  // Returns the passes by stage. REQUIRES: `chunks` is chunks(layout).
  const std::vector<StagePasses>& of_stages(const RunLayout& layout, const LayoutChunks& chunks);

 private:
  // Keys of stored chunks and passes: the values of a layout on which they depend.
  struct ChunksKey {
    int64_t pipeline, virtual_stages;
    PipelineOrder schedule;
    bool is_balanced;

    auto operator<=>(const ChunksKey&) const = default;
  };
  struct PassesKey {
    ChunksKey chunks;
    int64_t micro_batches;
    bool recompute;

    auto operator<=>(const PassesKey&) const = default;
  };

  static ChunksKey chunks_key(const RunLayout& layout);

  RunConfig config_;
  LayerKinds kinds_;
  std::map<ChunksKey, LayoutChunks> chunks_;
  std::map<PassesKey, std::vector<StagePasses>> passes_;
};

}  // namespace gptrain::planner
