// Pipeline schedules: the order in which each stage runs the passes of micro-batches through its chunks of the model.
// Schedules differ in nothing else: a pass consists of the same actions (of units, transfers, ZeRO's gathers and sums)
// under all of them. Adding a schedule takes one file and one row of the table in schedules.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain::inline schedule {

// Work of a stage on one micro-batch in one chunk.
enum class PassKind : uint8_t {
  forward,
  backward,        // gradients of the input and of the weights
  backward_input,  // this and backward_weight are the halves of a split backward pass (Qi et al., arXiv 2401.10241)
  backward_weight,
};

struct Pass {
  PassKind kind;
  int32_t chunk;
  int32_t micro_batch;

  bool operator==(const Pass&) const = default;
};

// Returns a text such as "backward_input of micro-batch 3 through chunk 1".
std::string pass_text(const Pass& pass);

// The model is cut into stages x chunks_per_stage chunks, numbered in forward order.
struct PipelineShape {
  int32_t stages = 1;
  int32_t chunks_per_stage = 1;
  int32_t micro_batches = 1;
  bool recompute = false;  // backward passes recompute the forward pass first

  int32_t chunks() const { return stages * chunks_per_stage; }
  bool operator==(const PipelineShape&) const = default;
};

struct PipelineSchedule {
  std::string_view name;         // value of parallel.pipeline_schedule
  int32_t least_chunks = 1;      // per stage; REQUIRED of a shape
  int32_t most_chunks = 1;       // per stage; 0: any number
  bool splits_backward = false;  // has backward_input and backward_weight in place of backward
  // Returns the stage that holds a chunk.
  int32_t (*stage_of)(const PipelineShape& shape, int32_t chunk) = nullptr;
  // Returns the passes of every stage, in order. The forwards of a chunk are in micro-batch order, and so are the
  // passes that compute its weight gradients: sums of gradients do not depend on the schedule.
  std::vector<std::vector<Pass>> (*passes)(const PipelineShape& shape) = nullptr;
};

// Passes by stage, as PipelineSchedule::passes returns them.
using PassLists = std::vector<std::vector<Pass>>;
// Returns schedule.passes(shape). Each thread caches its last result, so that making all stages of one pipeline
// computes the lists once.
std::shared_ptr<const PassLists> passes_of(const PipelineSchedule& schedule, const PipelineShape& shape);

}  // namespace gptrain::schedule
