// Studies: the dry runs' predictions for many configs, side by side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "machine/event_times.h"
#include "planner/study.h"

namespace gptrain::inline planner {

struct SweepAxis {
  std::string key;
  std::vector<std::string> values;  // as --set takes them
};
// Predicts the config with each value of the axis, or each pair of values of two axes. A point that a rule forbids has
// its faults in `refused`. THROWS Error(usage) if all points are forbidden and so is the config itself.
Study sweep_keys(const std::filesystem::path& file, std::span<const std::string> overrides,
                 const std::vector<SweepAxis>& axes, const Machine& machine, int64_t gpus, double price);

// Predicts the config with each method that saves memory (fit/saving_methods.h), alone and combined with others.
Study compare_methods(const std::filesystem::path& file, std::span<const std::string> overrides, const Machine& machine,
                      int64_t gpus, double price);

// Predicts the config on `first`, 2 `first`, 4 `first`, ... up to `last` devices. Strong scaling keeps batch.global;
// weak scaling lets it grow in proportion to the devices. Tensor size and number of stages stay, the number of data
// ranks grows, and batch.micro shrinks if it does not divide a rank's sequences.
Study scale_devices(const RunConfig& config, const Machine& machine, int64_t first, int64_t last, double price);

// Predicts the config with each number of NICs per node, at half, equal and twice their rate.
Study vary_links(const RunConfig& config, const Machine& machine, int64_t gpus, const std::vector<int64_t>& nics,
                 double price);

struct FitOptions {
  std::string family;                   // "gpt" or "llama"
  std::vector<std::string> optimizers;  // values of optimizer.type
  std::vector<std::string> overrides;   // further settings of all models
  int64_t gpus = 1;
};
// Finds the largest model of the family that fits `gpus` devices, their hosts and their drives, for each optimizer,
// precision and recomputation. Heads have size 128, a model has as many heads as layers, a micro-batch has one
// sequence, and several devices share the state by ZeRO 3.
Study fit_models(const Machine& machine, const FitOptions& options);

// Finds the largest model for each method that saves memory, otherwise with AdamW in bf16 (fp16 if the device has no
// bf16).
Study fit_methods(const Machine& machine, const FitOptions& options);

}  // namespace gptrain::planner
