// Memory and time of a layout without planning its ranks: lower bounds, and an estimate of the step at the granularity
// of passes. report/README.md has the formulas; tests compare them with full plans.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/layout_costs.h"
#include "planner/layout_passes.h"
#include "planner/layout_search.h"
#include "schedule/pipeline/simulate.h"

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
  LayoutEstimator(RunConfig config, const Machine& machine, const Target& target);

  // Returns the bound of the stage that needs the most. If parameters alone exceed `device_bytes`, activations are not
  // counted.
  LeastBytes least_bytes(const RunLayout& layout, int64_t device_bytes);
  // Returns the bytes that a block saves for a micro-batch without recomputation. Any backward pass needs as many.
  int64_t record_bytes(const RunLayout& layout);
  // Returns a lower bound of estimate().step_seconds.
  double least_seconds(const RunLayout& layout);
  // Simulates the pipeline's passes. peak_bytes of the result is the lower bound.
  LayoutResult estimate(const RunLayout& layout);

 private:
  // Bytes of a block, the mean over a chunk's layers.
  struct MeanBytes {
    int64_t plain = 0, recomputed = 0;  // saved for a micro-batch, without and with recomputation
    int64_t for_weights = 0;            // MicroBatchCosts::held_for_weight_bytes
    int64_t record = 0;                 // MicroBatchCosts::record_bytes
  };
  // Bytes that blocks save for a micro-batch, and how many micro-batches are in flight.
  struct Held {
    RecomputeKind recompute;  // recomputation of some of the layout's blocks
    int64_t outside_bytes;    // MicroBatchCosts::outside_bytes
    std::vector<MeanBytes> of_chunk;
    const std::vector<StagePasses>& passes;  // by stage
  };
  struct StepCosts {
    std::vector<PassTimes> chunks;  // by chunk
    // By chunk: seconds within its passes.
    std::vector<double> exposed_tensor, exposed_context, exposed_expert, exposed_traffic, exposed_copies;
    LayoutCosts::MessageCost message;
    double first_gathers = 0;  // seconds of gathering embedding and head, once a step, before the first micro-batch
    // By stage: seconds of gradient sums after its last pass; seconds after the global norm.
    std::vector<double> sums, updates;
    bool splits = false;  // whether backward passes are split
  };

  // Numbers of a chunk's layers whose activations do not stay on the device: recomputed ones, ones offloaded to the
  // host instead, and those of the recomputed ones whose inputs are offloaded.
  struct FreedLayers {
    int64_t recomputed = 0, copied = 0, copied_inputs = 0;
  };
  // Bytes that a layout with memory.recompute "optimal" saves if it recomputes no block, and if it recomputes all.
  struct HeldAtEnds {
    Held plain, recomputed;
  };
  HeldAtEnds held_at_ends(const RunLayout& layout, const LayoutChunks& chunks);
  // With memory.recompute "optimal": offloads layers whose copies are hidden, then recomputes layers, then offloads
  // their inputs, each until the stage fits.
  FreedLayers optimal_layers(const RunLayout& layout, const LayoutChunks& chunks, size_t chunk, const HeldAtEnds& held);
  // REQUIRES: layout.recompute is not optimal.
  static int64_t recomputed_layers(const RunLayout& layout, const LayoutChunks& chunks, size_t chunk);
  int64_t stage_bytes(const RunLayout& layout, const LayoutChunks& chunks, const Held& held, size_t stage);
  // Returns how many layers of each kind the chunk recomputes, if it recomputes `recomputed` layers in all.
  static std::vector<double> recomputed_of_kinds(const RunLayout& layout, const LayoutChunks& chunks, size_t chunk,
                                                 const LayerKinds& kinds, int64_t recomputed);
  // Returns the number of the chunk's layers whose copies to the host are hidden by passes.
  double hidden_layers(const RunLayout& layout, const LayoutChunks& chunks, size_t chunk, RecomputeKind recompute);
  // Returns how many of the chunk's layers are offloaded. For offload "hidden" this is an estimate, or with at_most an
  // upper bound.
  int64_t offloaded_layers(const RunLayout& layout, const LayoutChunks& chunks, size_t chunk, RecomputeKind recompute,
                           bool at_most);
  int64_t bytes_of_stage(const UnitBytes& bytes, int64_t PartBytes::*part, const LayoutChunks& chunks,
                         size_t stage) const;
  int64_t parameter_bytes(const UnitBytes& bytes, const LayoutChunks& chunks, size_t stage) const;
  // Returns the seconds that drives, or the links of GPUs to their hosts, take for values that are away; 0 without any.
  double seconds_of_places(const RunLayout& layout);
  Held held(const RunLayout& layout, const LayoutChunks& chunks);
  // Returns the seconds of the backward pass with weight gradients through a block, the mean over the stage's layers.
  double mean_backward(const RunLayout& layout, const LayoutChunks& chunks, size_t stage, bool splits);
  int64_t activation_bytes(const RunLayout& layout, const LayoutChunks& chunks, const Held& held, size_t stage);
  StepCosts costs(const RunLayout& layout);
  void add_chunk(const RunLayout& layout, const LayoutChunks& chunks, size_t chunk, const FreedLayers& freed,
                 StepCosts& costs);
  void add_stage(const RunLayout& layout, const LayoutChunks& chunks, size_t stage, StepCosts& costs);

  RunConfig config_;
  Machine machine_;
  double slow_down_;
  int64_t device_bytes_;  // bytes of device memory for a rank
  LayoutCosts parts_;
  LayoutPasses passes_;
};

}  // namespace gptrain::planner
