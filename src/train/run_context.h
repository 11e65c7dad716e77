// References that all parts of one rank's run share.
#pragma once

#include "comm/world.h"
#include "config/run_config.h"
#include "ops/backend.h"
#include "parallel/groups.h"
#include "step/step_profiler.h"
#include "train/batches.h"

namespace gptrain::inline train {

// Borrows all members, which must outlive the parts.
struct RunContext {
  const RunConfig& config;
  Backend& backend;  // logs ops if a step is to be profiled
  Backend& device;   // the same device, without a log
  RankGroups& groups;
  World& world;
  int threads;             // number of CPU threads for this rank
  StepProfiler* profiler;  // runs the backend's ops if a step is to be profiled; null: none is

  bool leads() const { return groups.rank() == 0; }                     // true on the rank that prints and writes
  Communicator* all() const { return groups.group(GroupKind::world); }  // null if there is one rank
  DataRank data_rank() const {
    return {groups.sample_rank(), groups.num_sample_ranks(), groups.on_context_axis().rank};
  }
};

}  // namespace gptrain::train
