// The size of a checkpoint and the time to write it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/json_text.h"
#include "config/run_config.h"
#include "mesh/mesh.h"
#include "model/spec/spec.h"
#include "parallel/memory.h"

namespace gptrain::inline step {

// Returns the bytes per element of a tensor's weights in a checkpoint: 4 (f32), or 2 with bf16-pure except for norms.
int64_t weight_bytes(const TensorSpec& tensor, const PrecisionConfig& precision);

// Returns the bytes of one checkpoint's tensors: weights, optimizer state, and the errors of compressed gradients that
// `data_ranks` ranks keep.
int64_t checkpoint_bytes(const ModelSpec& spec, const StepConfig& config, int64_t data_ranks = 1);

struct CheckpointForecast {
  int64_t bytes = 0;         // written by all ranks
  int64_t rank_bytes = 0;    // written by the rank that writes the most
  int64_t node_bytes = 0;    // written by the node that writes the most
  double seconds = 0;        // time of this node to write to the shared storage; 0: the rate is not known
  double local_seconds = 0;  // time of this node to write to its own drives; 0: the rate is not known
  double copied_share = 1;   // share of the bytes that an asynchronous save copies to memory; the rest is cloned
};

// Bytes per second that a node writes; 0: not known.
struct StorageRates {
  double shared = 0;  // to the storage of checkpoints
  double local = 0;   // to drives of its own
};

// Forecasts a checkpoint of `bytes` bytes. `of_ranks`: WorldPlan::written_bytes (fit/plan_world.h). `ranks_per_node`: 0
// means that all ranks are on one node. `largest`: memory of the rank that takes the most.
CheckpointForecast forecast_checkpoint(int64_t bytes, const std::vector<int64_t>& of_ranks, const Mesh& mesh,
                                       int64_t ranks_per_node, const StorageRates& rates, const MemoryPlan& largest);

// The forecast in the dry run: a remark beside the checkpoint's size, and keys of its JSON.
std::string checkpoint_remark(const CheckpointForecast& forecast);
Json checkpoint_json(const CheckpointForecast& forecast);

}  // namespace gptrain::step
