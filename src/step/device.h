// Chooses the device that a rank computes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "ops/backend.h"

namespace gptrain::inline step {

// THROWS Error(code) if the config needs features that the target lacks: matrix products in bf16 or FP8, or attention
// heads longer than the GPU kernels allow.
void require_target(const StepConfig& config, const Target& target, ExitCode code);

// Returns run.threads, or if that is 0 this rank's share of the cores. The process uses the cores that it is bound to,
// at most its share among the processes of the node. `local_ranks`: ranks on this node.
int threads_of_rank(int64_t asked, int64_t ranks_of_process, int64_t local_ranks);

// Returns the target that run.device means on this machine, for a plan of a run with all `world_size` ranks on it,
// `ranks_of_process` in each process. Takes no device. THROWS Error(machine) like open_device.
Target planned_device(const RunConfig& config, int64_t world_size, int64_t ranks_of_process);

// Returns whether a run of this process computes on the CPU, so that data passes between ranks through the host.
bool computes_on_cpu(DeviceKind asked);

struct RankDevice {
  std::unique_ptr<Backend> backend;
  int sharing = 1;           // number of ranks that share the device's memory, this one included
  int64_t memory_bytes = 0;  // memory that these ranks share: of the device, or of their control group
  bool exclusive = false;    // no two ranks of the world share a device
};

// THROWS Error(device) on all ranks if they compute on different device models, which round differently, unless
// comm.mixed_machines is true. `model`: name of this rank's device model. Collective over `all`, the group of the
// world; null if there is one rank.
void require_same_models(bool mixed_machines, Communicator* all, const World& world, const std::string& model);

// Makes the backend for run.device. `auto` is CUDA if there is a device, else the CPU. The ranks of a node take its
// CUDA devices in turn, in rank order. On the CPU a rank gets `num_threads`. Collective over `all`, the group of the
// world; null if there is one rank. THROWS on all ranks Error(machine) if there is no CUDA device though one is asked
// for, or the device is too old or lacks features that the config needs; Error(device) if the device cannot be used, or
// if require_same_models throws.
RankDevice open_device(const RunConfig& config, Communicator* all, const World& world, int num_threads);

}  // namespace gptrain::step
