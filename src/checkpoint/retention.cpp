#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/directory.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/contents.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"
#include "checkpoint/losses.h"

namespace gptrain::inline checkpoint {
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

// Removes a checkpoint by way of a temporary name, so that no crash leaves half of one under the name of a whole one.
std::string remove_checkpoint(const fs::path& checkpoint) {
  const fs::path temporary =
      checkpoint.parent_path() / (std::string(temporary_prefix) + checkpoint.filename().string());
  std::error_code error;
  fs::rename(checkpoint, temporary, error);
  if (error) return fmt::format("cannot remove {}: {}", checkpoint.string(), error.message());
  // The new name is on the disk before any file is gone.
  sync_folder(checkpoint.parent_path());
  return remove_folder(temporary);
}

// Removes the abandoned checkpoints of steps up to `last_step`.
std::string remove_abandoned_until(const fs::path& out, int64_t last_step) {
  std::string warnings;
  for (const CheckpointInfo& info : list_abandoned(out))
    if (info.step <= last_step) add_warning(warnings, remove_checkpoint(info.path));
  return warnings;
}

// Returns the step of the newest checkpoint whose loss has not risen; -1: none, or none would be removed.
int64_t step_before_rise(std::vector<CheckpointInfo> checkpoints, int64_t keep_last) {
  if (std::ssize(checkpoints) <= keep_last) return -1;
  for (;;) {
    const std::optional<CheckpointLoss> last = last_before_rise(checkpoints);
    if (!last) return -1;
    const int64_t step = last->checkpoint.step;
    if (is_sound_checkpoint(last->checkpoint.path)) return step;
    std::erase_if(checkpoints, [step](const auto& info) { return info.step == step; });
  }
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

std::vector<CheckpointInfo> list_abandoned(const fs::path& out) {
  std::vector<CheckpointInfo> found;
  std::error_code ignored;
  for (const fs::path& path : paths_in(checkpoints_folder(out), ignored))
    if (const auto step = step_of_abandoned_name(path.filename().string())) found.push_back({path, *step});
  return found;
}

std::string remove_abandoned(const fs::path& out) {
  try {
    return remove_abandoned_until(out, std::numeric_limits<int64_t>::max());
  } catch (const Error& e) {
    return e.what();
  }
}

std::string apply_retention(const fs::path& out, int64_t keep_last, int64_t keep_every) {
  std::string warnings = remove_unfinished_checkpoints(out);
  try {
    const std::vector<CheckpointInfo> checkpoints = list_checkpoints(out);
    const int64_t before_rise = step_before_rise(checkpoints, keep_last);
    int64_t num_kept = 0, newest_step = -1;
    for (auto newest = checkpoints.rbegin(); newest != checkpoints.rend(); ++newest) {
      const CheckpointInfo& old = *newest;
      const bool is_candidate = num_kept >= keep_last;
      if (is_candidate && keep_every > 0 && old.step % keep_every == 0) continue;
      if (!is_sound_checkpoint(old.path)) continue;
      ++num_kept;
      newest_step = std::max(newest_step, old.step);
      if (!is_candidate || old.step == before_rise) continue;
      add_warning(warnings, remove_checkpoint(old.path));
    }
    add_warning(warnings, remove_abandoned_until(out, newest_step));
  } catch (const Error& e) {
    add_warning(warnings, e.what());
  }
  return warnings;
}

}  // namespace gptrain::checkpoint
