// Pipeline schedules: the order in which each stage runs the passes of micro-batches through its chunks of the model.
// This is all that tells one schedule from another; what a pass is made of (actions of units, transfers, ZeRO's
// gathers and sums) is the same for all. Adding a schedule takes one file and one row of the table.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

// What a stage does with one micro-batch and one chunk at a time.
enum class PassKind : uint8_t {
  forward,
  backward,        // gradients of the input and of the weights
  backward_input,  // the two halves apart (Qi et al., arXiv 2401.10241)
  backward_weight,
};

struct Pass {
  PassKind kind;
  int32_t chunk;
  int32_t micro_batch;

  bool operator==(const Pass&) const = default;
};

// "backward_input of micro-batch 3 through chunk 1".
std::string pass_text(const Pass& pass);

// The model is cut into stages x chunks_per_stage chunks, numbered in forward order.
struct PipelineShape {
  int32_t stages = 1;
  int32_t chunks_per_stage = 1;
  int32_t micro_batches = 1;
  bool recompute = false;  // backward passes run the forward again first

  int32_t chunks() const { return stages * chunks_per_stage; }
  bool operator==(const PipelineShape&) const = default;
};

struct PipelineSchedule {
  std::string_view name;         // as in configs
  int32_t least_chunks = 1;      // per stage
  int32_t most_chunks = 1;       // per stage; 0: any number
  bool splits_backward = false;  // has backward_input and backward_weight in place of backward
  // The stage that holds a chunk.
  int32_t (*stage_of)(const PipelineShape& shape, int32_t chunk) = nullptr;
  // The passes of every stage, in order. Forwards of a chunk come in the order of micro-batches, and so do the passes
  // that make gradients of weights: sums of gradients do not depend on the schedule.
  std::vector<std::vector<Pass>> (*passes)(const PipelineShape& shape) = nullptr;
};

// By stage, as PipelineSchedule::passes has them.
using PassLists = std::vector<std::vector<Pass>>;
// Those of the schedule. A thread that designs the stages of one pipeline one after the other makes them once: those of
// its last shape are kept.
std::shared_ptr<const PassLists> passes_of(const PipelineSchedule& schedule, const PipelineShape& shape);

}  // namespace gptrain
