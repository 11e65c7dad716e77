// What a checkpoint takes, and for how long it is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/json_text.h"
#include "config/run_config.h"
#include "mesh/mesh.h"
#include "model/spec/spec.h"

namespace gptrain {

// Bytes of an element of the tensor's weights in a checkpoint: f32, with bf16-pure bf16 but for norms.
int64_t weight_bytes(const TensorSpec& tensor, const PrecisionConfig& precision);

// Bytes of one checkpoint's tensors: weights and the optimizer's columns.
int64_t checkpoint_bytes(const ModelSpec& spec, const RunConfig& config);

struct CheckpointForecast {
  int64_t bytes = 0;
  int64_t rank_bytes = 0;    // of the rank that writes the most
  int64_t node_bytes = 0;    // likewise of the node
  double seconds = 0;        // for the node that writes the most; 0: its rate is not known
  double local_seconds = 0;  // likewise to drives of its own
};

// Bytes per second that a node writes, to the storage of checkpoints and to its own drives; 0: not known.
struct StorageRates {
  double shared = 0, local = 0;
};

// `of_ranks`: as WorldPlan::written_bytes of step/plan_step.h. `ranks_per_node`: 0 for all.
CheckpointForecast forecast_checkpoint(int64_t bytes, const std::vector<int64_t>& of_ranks, const Mesh& mesh,
                                       int64_t ranks_per_node, const StorageRates& rates);

// The dry run's remark beside the bytes, and its keys.
std::string checkpoint_remark(const CheckpointForecast& forecast);
Json checkpoint_json(const CheckpointForecast& forecast);

}  // namespace gptrain
