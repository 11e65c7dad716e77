// The device that a rank computes on.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "ops/backend.h"

namespace gptrain {

// What run.device is here, for a plan of the run: nothing is taken. Error(device) as below.
Target planned_device(const RunConfig& config);

struct RankDevice {
  std::unique_ptr<Backend> backend;
  int sharing = 1;     // ranks that share its memory, this one included
  bool apart = false;  // no two ranks of the world share one
};

// run.device, as far as this machine has it: `auto` is CUDA where there is a device, else the CPU. The ranks of a node
// take the CUDA devices that they see in turn, in rank order. On the CPU a rank gets `num_threads`. Collective over
// `all`, the group of the world (null: there is one rank). Error(device) on all ranks: CUDA is asked for and there is
// none, or a device cannot be used.
RankDevice take_device(const RunConfig& config, Communicator* all, const World& world, int num_threads);

}  // namespace gptrain
