// The device that a rank computes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "ops/backend.h"

namespace gptrain {

// Throws Error(code) where the config asks for what the target does not have: products (precision.compute = bf16 or
// bf16-pure, precision.linears = fp8), or on a GPU attention with heads that are too long.
void require_target(const RunConfig& config, const Target& target, ExitCode code);

// A rank's share of the cores that its process may use: of all of the machine's where nobody has bound it, which the
// processes of the node then share.
int threads_of_rank(const RunConfig& config, int64_t ranks_of_process, int64_t local_ranks);

// What run.device is here for each of `world_size` ranks, all on this machine and `ranks_of_process` in one process,
// for a plan of the run: nothing is taken. Error(device) as below.
Target planned_device(const RunConfig& config, int64_t world_size, int64_t ranks_of_process);

struct RankDevice {
  std::unique_ptr<Backend> backend;
  int sharing = 1;     // ranks that share its memory, this one included
  bool apart = false;  // no two ranks of the world share one
};

// Throws Error(device) on all ranks if they compute on different models of devices, which round differently, unless
// comm.mixed_machines allows it. `model` names this rank's. Collective over `all`, as below.
void require_same_models(const RunConfig& config, Communicator* all, const World& world, const std::string& model);

// run.device, as far as this machine has it: `auto` is CUDA where there is a device, else the CPU. The ranks of a node
// take the CUDA devices that they see in turn, in rank order. On the CPU a rank gets `num_threads`. Collective over
// `all`, the group of the world (null: there is one rank). Error(device) on all ranks: CUDA is asked for and there is
// none, a device cannot be used, or has no such products; or the ranks' are of different models.
RankDevice take_device(const RunConfig& config, Communicator* all, const World& world, int num_threads);

}  // namespace gptrain
