// Memory and time of a layout without planning its ranks: lower bounds, and an estimate of the step at the granularity
// of passes. report/README.md has the formulas; tests compare them with full plans.
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

namespace gptrain::inline planner {

// 95% of estimates are within estimate_error of the simulated step, all tested ones within largest_estimate_error. The
// largest errors come from pipelines that wait much, where traffic and recomputation hide in the waiting. If passes
// wait for copies to the host and chunks have few layers, errors may be 1.5 times as large.
constexpr double estimate_error = 0.10;
constexpr double largest_estimate_error = 0.20;

// A lower bound of the memory of a layout's ranks.
struct LeastBytes {
  int64_t bytes = 0;  // device memory that a rank of `stage` needs at least
  int32_t stage = 0;  // stage that needs the most
};

class LayoutEstimator {
 public:
  LayoutEstimator(const RunConfig& config, const Machine& machine, const Target& target);

  // Returns the bound of the stage that needs the most. If parameters alone exceed `room`, activations are not counted.
  LeastBytes least_bytes(const RunLayout& layout, int64_t room);
  // Returns the bytes that a block saves for a micro-batch without recomputation. Any backward pass needs as many.
  int64_t record_bytes(const RunLayout& layout);
  // Returns a lower bound of estimate().step_seconds.
  double least_seconds(const RunLayout& layout);
  // Simulates the pipeline's passes. peak_bytes of the result is the lower bound.
  LayoutResult estimate(const RunLayout& layout);

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

  // Distribution of layers over chunks, and of chunks over stages.
  struct Chunks {
    Stages stages;
    std::vector<int64_t> first_layers, layers;   // by chunk: first layer, number of layers
    std::vector<std::vector<int32_t>> of_stage;  // by stage: its chunks

    // Returns whether the chunk's input, and whether the gradient of its output, comes from another stage.
    std::pair<bool, bool> receives(size_t chunk) const;
    bool has_embedding(size_t stage) const { return stages.stage_of_chunk(0) == static_cast<int32_t>(stage); }
    bool has_head(size_t stage) const {
      return stages.stage_of_chunk(stages.shape.chunks() - 1) == static_cast<int32_t>(stage);
    }
    int64_t layers_of(size_t stage) const;
  };
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
  // Bytes that blocks save for a micro-batch.
  struct Held {
    const MicroBatchCosts* any;                     // costs of one of the layout's kinds of blocks; owned by parts_
    int64_t plain_bytes = 0, recomputed_bytes = 0;  // for each block without and with recomputation
  };
  struct StepCosts {
    std::vector<PassTimes> chunks;                                        // by chunk
    std::vector<double> exposed_tensor, exposed_traffic, exposed_copies;  // by chunk: seconds within its passes
    LayoutCosts::MessageCost message;
    double first_gathers = 0;  // seconds of gathering embedding and head, once a step, before the first micro-batch
    // By stage: seconds of gradient sums after its last pass; seconds after the global norm.
    std::vector<double> sums, updates;
    bool splits = false;  // whether backward passes are split
  };

  const Chunks& chunks(const RunLayout& layout);
  const std::vector<StagePasses>& stage_passes(const RunLayout& layout, const Chunks& chunks);
  static InFlight most_in_flight(const std::vector<Pass>& passes, const std::vector<int32_t>& chunks);
  static void count_others(const std::vector<Pass>& passes, const std::vector<int32_t>& chunks, StagePasses& counts);
  static void count_gathers(const std::vector<Pass>& passes, const Chunks& chunks, size_t stage, StagePasses& counts);
  // Numbers of a chunk's layers whose activations do not stay on the device: recomputed ones, ones offloaded to the
  // host instead, and those of the recomputed ones whose inputs are offloaded.
  struct FreedLayers {
    int64_t recomputed = 0, copied = 0, copied_inputs = 0;
  };
  // With memory.recompute "optimal": offloads layers whose copies are hidden, then recomputes layers, then offloads
  // their inputs, each until the stage fits.
  FreedLayers freed_layers(const RunLayout& layout, const Chunks& chunks, size_t chunk, const MicroBatchCosts& plain);
  // REQUIRES: layout.recompute is not optimal.
  static int64_t recomputed_layers(const RunLayout& layout, const Chunks& chunks, size_t chunk);
  int64_t stage_bytes(const RunLayout& layout, const Chunks& chunks, const Held& held, size_t stage);
  // Returns how many of `layers` are offloaded. For offload "hidden" this is an estimate, or with at_most an upper
  // bound.
  int64_t offloaded_layers(const RunLayout& layout, const MicroBatchCosts& costs, int64_t layers, bool at_most) const;
  int64_t parameter_bytes(const UnitBytes& bytes, const Chunks& chunks, size_t stage) const;
  Held held(const RunLayout& layout, const Chunks& chunks);
  int64_t activation_bytes(const RunLayout& layout, const Chunks& chunks, const Held& held, const InFlight& counts,
                           size_t stage);
  // Returns LayoutCosts::first_alike of the chunk's stage.
  size_t first_alike(const RunLayout& layout, const Chunks& chunks, size_t chunk);
  StepCosts costs(const RunLayout& layout);
  void add_chunk(const RunLayout& layout, const Chunks& chunks, size_t chunk, StepCosts& costs);
  void add_stage(const RunLayout& layout, const Chunks& chunks, size_t stage, StepCosts& costs);

  RunConfig config_;
  double slow_down_;
  int64_t room_;  // bytes of device memory for a rank
  LayoutCosts parts_;
  std::map<ChunksKey, Chunks> chunks_;
  std::map<PassesKey, std::vector<StagePasses>> stage_passes_;
};

}  // namespace gptrain::planner
