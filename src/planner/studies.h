// Predictions of many configs beside each other. Each is what the dry run of that config says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "machine/event_times.h"
#include "planner/study.h"

namespace gptrain {

struct SweepAxis {
  std::string key;
  std::vector<std::string> values;  // as --set takes them
};
// The config with each value of the axis, or each pair of both. What a rule forbids is refused with its first fault.
// Error(usage): the config is bad by itself.
Study sweep_keys(const std::filesystem::path& file, std::span<const std::string> overrides,
                 const std::vector<SweepAxis>& axes, const Machine& machine, int64_t gpus, double price);

// The config with each method that saves memory (saving_methods.h), by itself and with others.
Study compare_methods(const std::filesystem::path& file, std::span<const std::string> overrides, const Machine& machine,
                      int64_t gpus, double price);

// Numbers of devices from `first` to `last`, each twice the one before. Strong: batch.global stays. Weak: it is the
// config's on the first number, and grows with the devices. Tensor size and stages stay, the data ranks take the rest;
// batch.micro shrinks where a rank has fewer sequences.
Study scale_devices(const RunConfig& config, const Machine& machine, int64_t first, int64_t last, double price);

// The step with other numbers of NICs in a node, at half, once and twice their rate.
Study vary_links(const RunConfig& config, const Machine& machine, int64_t gpus, const std::vector<int64_t>& nics,
                 double price);

// The largest models of a family ("gpt", "llama") that so many devices train, by optimizer (words of optimizer.type),
// precision and recomputation: heads of 128, as many of them as layers, micro-batches of one sequence; with several
// devices ZeRO 3 over all.
Study fit_models(const Machine& machine, const std::string& family, const std::vector<std::string>& optimizers,
                 int64_t gpus);

// The same by method that saves memory: with AdamW in mixed precision otherwise, which is bf16 where the device has it.
Study fit_methods(const Machine& machine, const std::string& family, int64_t gpus);

}  // namespace gptrain
