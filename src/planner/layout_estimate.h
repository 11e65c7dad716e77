// What a layout takes, without planning its ranks one by one: bounds of its memory and time, and an estimate of its step
// at the granularity of passes. report/README.md has the formulas; the tests hold them against whole plans.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "planner/layout_costs.h"
#include "planner/layout_search.h"
#include "schedule/pipeline/simulate.h"
#include "schedule/stages.h"

namespace gptrain {

// Nineteen of twenty estimates differ from the simulated step by less than the first share of it, all of the tests by less
// than the second: where stages wait much, traffic and recomputation hide in that. With copies that passes wait for, chunks
// of few layers may make it half as much again.
constexpr double estimate_error = 0.10;
constexpr double largest_estimate_error = 0.20;

struct LeastBytes {
  int64_t bytes = 0;  // that a rank of `stage` takes at least
  int32_t stage = 0;
};

class LayoutEstimator {
 public:
  LayoutEstimator(const RunConfig& config, const Machine& machine, const Target& target);

  // Of the stage that has the most. Where parameters alone take more than `room`, these.
  LeastBytes least_bytes(const RunLayout& layout, int64_t room);
  // What a block keeps of a micro-batch, if all is kept: it is there when the block's backward pass runs.
  int64_t record_bytes(const RunLayout& layout);
  // No estimate is below.
  double least_seconds(const RunLayout& layout);
  // Plays the pipeline's passes. peak_bytes is the lower bound.
  LayoutResult estimate(const RunLayout& layout);

 private:
  // The values of a layout that its chunks, and the passes of its stages, depend on.
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

  // How the layers lie, by chunk, and which chunks a stage has.
  struct Chunks {
    Stages stages;
    std::vector<int64_t> first_layers, layers;
    std::vector<std::vector<int32_t>> of_stage;

    // Whether the chunk's input and the gradient of its output come from other stages.
    std::pair<bool, bool> receives(size_t chunk) const;
    bool has_embedding(size_t stage) const { return stages.stage_of_chunk(0) == static_cast<int32_t>(stage); }
    bool has_head(size_t stage) const {
      return stages.stage_of_chunk(stages.shape.chunks() - 1) == static_cast<int32_t>(stage);
    }
    int64_t layers_of(size_t stage) const;
  };
  // When a stage holds the most: micro-batches of each of its chunks, between forward and backward, and between the two
  // halves of the backward pass.
  struct InFlight {
    std::vector<int32_t> whole, for_weights;
  };
  // What the order of a stage's passes makes of it. By chunk, on average: blocks whose weights a pass gathers with ZeRO 3
  // (the two that were used last have theirs still), and the share of the passes that make gradients after which one
  // comes that makes none.
  struct StagePasses {
    InFlight most;
    std::vector<double> forward_gathers, backward_gathers, before_others;
  };
  // What blocks keep of a micro-batch.
  struct Held {
    const MicroBatchCosts* any;  // of blocks that the layout has
    int64_t plain_bytes = 0, recomputed_bytes = 0;
  };
  struct StepCosts {
    std::vector<PassTimes> chunks;
    std::vector<double> exposed_tensor, exposed_traffic, exposed_copies;  // by chunk, in those times
    LayoutCosts::MessageCost message;
    double first_gathers = 0;           // of what is gathered once: the tables, on the first micro-batch's way
    std::vector<double> sums, updates;  // by stage: after its last pass; after the norm
    bool splits = false;
  };

  const Chunks& chunks(const RunLayout& layout);
  const std::vector<StagePasses>& stage_passes(const RunLayout& layout, const Chunks& chunks);
  static InFlight most_in_flight(const std::vector<Pass>& passes, const std::vector<int32_t>& chunks);
  static void count_others(const std::vector<Pass>& passes, const std::vector<int32_t>& chunks, StagePasses& counts);
  static void count_gathers(const std::vector<Pass>& passes, const Chunks& chunks, size_t stage, StagePasses& counts);
  // Of a chunk: layers that are run again, whose record is copied to the host, and of those run again those whose input is.
  struct FreedLayers {
    int64_t recomputed = 0, copied = 0, copied_inputs = 0;
  };
  // With what is made to fit: copies that hide first, then layers that run again, then copies of their inputs, each as far
  // as it takes.
  FreedLayers freed_layers(const RunLayout& layout, const Chunks& chunks, size_t chunk, const MicroBatchCosts& plain);
  // Not of what is made to fit.
  static int64_t recomputed_layers(const RunLayout& layout, const Chunks& chunks, size_t chunk);
  int64_t stage_bytes(const RunLayout& layout, const Chunks& chunks, const Held& held, size_t stage);
  // Of the layers: those that are offloaded, of `hidden` about, or at most.
  int64_t offloaded_layers(const RunLayout& layout, const MicroBatchCosts& costs, int64_t layers, bool at_most) const;
  int64_t parameter_bytes(const UnitBytes& bytes, const Chunks& chunks, size_t stage) const;
  Held held(const RunLayout& layout, const Chunks& chunks);
  int64_t activation_bytes(const RunLayout& layout, const Chunks& chunks, const Held& held,
                                  const InFlight& counts, size_t stage);
  // Of the chunk's stage, as of LayoutCosts.
  size_t first_alike(const RunLayout& layout, const Chunks& chunks, size_t chunk);
  StepCosts costs(const RunLayout& layout);
  void add_chunk(const RunLayout& layout, const Chunks& chunks, size_t chunk, StepCosts& costs);
  void add_stage(const RunLayout& layout, const Chunks& chunks, size_t stage, StepCosts& costs);

  RunConfig config_;
  double slow_down_;
  int64_t room_;  // of a device
  LayoutCosts parts_;
  std::map<ChunksKey, Chunks> chunks_;
  std::map<PassesKey, std::vector<StagePasses>> stage_passes_;
};

}  // namespace gptrain
