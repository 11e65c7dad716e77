// What every part of one rank's run works with.
#pragma once

#include "comm/world.h"
#include "config/run_config.h"
#include "ops/backend.h"
#include "parallel/groups.h"
#include "train/batches.h"

namespace gptrain {

// Borrowed: all of it outlives the parts.
struct RunContext {
  const RunConfig& config;
  Backend& backend;
  RankGroups& groups;
  World& world;
  int threads;  // of the host that are this rank's

  bool leads() const { return groups.rank() == 0; }                     // rank 0 prints and writes; all compute
  Communicator* all() const { return groups.group(GroupKind::world); }  // null: there is one rank
  DataPlace place() const { return {groups.sample_rank(), groups.num_sample_ranks()}; }
};

}  // namespace gptrain
