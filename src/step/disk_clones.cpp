#include "step/disk_clones.h"

#include <string>
#include <vector>

#include "storage/stored_files.h"

namespace gptrain::inline step {

bool may_clone_files(const RunConfig& config) {
  return config.memory.uses_disk() && config.checkpoint.keeps_snapshot() &&
         config.memory.disk_clones != DiskClones::never;
}

std::string disk_clone_obstacle(const RunConfig& config) {
  const std::vector<std::string> folders = config.memory.disk_folders();
  return clone_obstacle({folders.begin(), folders.end()});
}

}  // namespace gptrain::step
