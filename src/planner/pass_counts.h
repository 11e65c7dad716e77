// The layers of a layout's chunks, and counts over the order of passes through them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/spec/layer_kinds.h"
#include "schedule/pipeline/pipeline.h"
#include "schedule/stages.h"

namespace gptrain {

// Distribution of layers over chunks, and of chunks over stages.
struct LayoutChunks {
  Stages stages;
  std::vector<int64_t> first_layers, layers;   // by chunk: first layer, number of layers
  std::vector<std::vector<int64_t>> of_kinds;  // by chunk: number of layers of each kind
  std::vector<std::vector<int32_t>> of_stage;  // by stage: its chunks

  // Returns whether the chunk's input, and whether the gradient of its output, comes from another stage.
  std::pair<bool, bool> receives(size_t chunk) const;
  bool has_embedding(size_t stage) const { return stages.stage_of_chunk(0) == static_cast<int32_t>(stage); }
  bool has_head(size_t stage) const {
    return stages.stage_of_chunk(stages.shape.chunks() - 1) == static_cast<int32_t>(stage);
  }
  int64_t layers_of(size_t stage) const;
  // Returns the stage's number of layers of each kind.
  std::vector<int64_t> kinds_of(size_t stage) const;
};

// `layers`: number of layers of each chunk.
LayoutChunks make_chunks(const Stages& stages, const std::vector<int64_t>& layers, const LayerKinds& kinds);

// Micro-batches in flight, by chunk of a stage, at the moment when the stage saves the most.
struct InFlight {
  // Between forward and backward pass; between the two halves of the backward pass.
  std::vector<int32_t> whole, for_weights;
};

// Properties of the order of a stage's passes. Vectors have one element for each chunk of the stage.
struct StagePasses {
  InFlight most;
  // forward_gathers, backward_gathers: mean number of blocks whose weights a pass gathers with ZeRO 3 (the two blocks
  // used last still have theirs). before_others: share of the passes with weight gradients that a pass without
  // follows.
  std::vector<double> forward_gathers, backward_gathers, before_others;
};

// Returns the properties of all stages.
std::vector<StagePasses> count_passes(const LayoutChunks& chunks, const PassLists& passes);

// Returns the position of a chunk among the chunks of its stage.
size_t place_of_chunk(const std::vector<int32_t>& chunks, int32_t chunk);

}  // namespace gptrain
