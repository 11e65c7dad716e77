// Routing of a step, by layer with experts.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
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
  double dropped;  // token-expert pairs that experts dropped, or for which a rank had no memory
  std::vector<int64_t> starving = {};  // experts with less than starving_share of the mean
  std::vector<double> loads = {};      // tokens of each expert over the mean of all; empty: not recorded
};
constexpr double starving_share = 0.01;

// Finds experts that hardly get tokens, step after step: they learn nothing, and the router avoids them for good.
class StarvingExperts {
 public:
  static constexpr int64_t most_steps = 50;

  // Adds a step's routing. RETURNS a warning, once for each expert, if experts have been starving for most_steps steps
  // in a row; else an empty text.
  std::string add(const std::vector<LayerRouting>& routing);

 private:
  std::map<std::pair<int64_t, int64_t>, int64_t> steps_;  // steps in a row, by layer and expert
};

// RETURNS whether the loads of experts are recorded after a step that is logged: at most 128 times in a run, evenly.
// `log_every`: steps from one that is logged to the next.
bool records_loads(int64_t step, int64_t steps_of_run, int64_t log_every);

// RETURNS the routing of each layer with experts. `sums`: the step's statistic of routing (routing_statistic), empty if
// it was not collected.
std::vector<LayerRouting> layer_routing(const ModelConfig& model, const BatchConfig& batch,
                                        std::span<const double> sums);

// THROWS Error(diverged) if experts on this rank, or on one that shares them with it, had too little memory for their
// rows. `when`: "step 3".
void refuse_overflow(const TrainingStep& step, const std::string& when);

}  // namespace gptrain::train
