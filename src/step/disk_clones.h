// The choice whether asynchronous checkpoints read state on disk from clones of its working files.
#pragma once

#include <string>

#include "config/run_config.h"

namespace gptrain::inline step {

// Returns whether a run of the config would clone working files if the file systems of memory.disk_path can.
bool may_clone_files(const RunConfig& config);
// Returns why they cannot on this machine; empty if they can. Makes files there for a moment. REQUIRES:
// may_clone_files(config).
std::string disk_clone_obstacle(const RunConfig& config);

}  // namespace gptrain::step
