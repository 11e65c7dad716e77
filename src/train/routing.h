// Routing of a step, by layer with experts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "step/training_step.h"

namespace gptrain::inline train {

struct LayerRouting {
  int64_t layer;   // number of the block
  double most;     // tokens of the expert that got most, over the mean of all
  double least;    // the same for the expert that got fewest
  double aux;      // balance loss before its weight, mean over sequences or micro-batches; 1 at equal loads
  double z;        // squared log-sum-exp of the logits, mean over tokens
  double entropy;  // entropy of the router's scores, nats, mean over tokens
  double dropped;  // copies of tokens that experts dropped, or that a rank had no room for
};

// RETURNS the routing of each layer with experts. `sums`: the step's statistic of routing (routing_statistic), empty if
// it was not collected.
std::vector<LayerRouting> layer_routing(const ModelConfig& model, const BatchConfig& batch,
                                        std::span<const double> sums);

// THROWS Error(diverged) if experts on this rank, or on one that shares them with it, had no room for their rows.
// `when`: "step 3".
void refuse_overflow(const TrainingStep& step, const std::string& when);

}  // namespace gptrain::train
