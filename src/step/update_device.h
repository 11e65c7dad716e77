// Place of updates that do not run where the ops do.
#pragma once

#include "ops/backend.h"
#include "storage/working_files.h"

namespace gptrain::inline step {

// Backend and memory of updates that do not run where the ops do.
struct UpdateDevice {
  // Runs them with StepChoices::updates_on_host, or with state that is away; null: the ops' own.
  Backend* backend = nullptr;
  WorkingFiles* files = nullptr;  // memory of StepChoices::optimizer_state on disk; a plan has none
  // The GPU of updates on its host, for queues that log no copies; a plan has none.
  Backend* gpu = nullptr;
  std::vector<int> cores = {};  // cores of the threads of updates; empty: all
};

}  // namespace gptrain::step
