#include <fmt/format.h>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/directory.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/contents.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"

namespace gptrain {
namespace fs = std::filesystem;
namespace {

void add_warning(std::string& warnings, const std::string& warning) {
  if (!warnings.empty() && !warning.empty()) warnings += "; ";
  warnings += warning;
}

std::vector<fs::path> temporary_folders(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::path& path : paths_in(folder, ignored)) {
    if (path.filename().string().starts_with(temporary_prefix)) found.push_back(path);
  }
  return found;
}

}  // namespace

bool is_sound_checkpoint(const fs::path& checkpoint) {
  try {
    read_manifest_and_sizes(checkpoint);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string remove_unfinished_checkpoints(const fs::path& out) {
  std::string warnings;
  for (const fs::path& temporary : temporary_folders(checkpoints_folder(out)))
    add_warning(warnings, remove_folder(temporary));
  return warnings;
}

std::string apply_retention(const fs::path& out, int64_t keep_last, int64_t keep_every) {
  const fs::path folder = checkpoints_folder(out);
  std::string warnings = remove_unfinished_checkpoints(out);
  try {
    const std::vector<CheckpointInfo> checkpoints = list_checkpoints(out);
    int64_t kept = 0;
    for (auto newest = checkpoints.rbegin(); newest != checkpoints.rend(); ++newest) {
      const CheckpointInfo& old = *newest;
      const bool is_candidate = kept >= keep_last;
      if (is_candidate && keep_every > 0 && old.step % keep_every == 0) continue;
      if (!is_sound_checkpoint(old.path)) continue;
      ++kept;
      if (!is_candidate) continue;
      const fs::path temporary = folder / temporary_folder_name(old.step);
      std::error_code error;
      fs::rename(old.path, temporary, error);
      if (error) {
        add_warning(warnings, fmt::format("cannot remove {}: {}", old.path.string(), error.message()));
        continue;
      }
      // The new name is on the disk before any file is gone.
      sync_folder(folder);
      add_warning(warnings, remove_folder(temporary));
    }
  } catch (const Error& e) {
    add_warning(warnings, e.what());
  }
  return warnings;
}

}  // namespace gptrain
