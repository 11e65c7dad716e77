#include "checkpoint/losses.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <vector>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"

namespace gptrain::inline checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr double most_rise = 1.5, noise = 0.1;

bool has_risen(double loss, double least) { return !std::isfinite(loss) || loss > most_rise * least + noise; }

// Returns the run's checkpoints that record their loss, oldest first.
std::vector<CheckpointLoss> known_losses(const fs::path& out) {
  std::vector<CheckpointLoss> known;
  for (const CheckpointInfo& info : list_checkpoints(out)) {
    try {
      const std::optional<double> loss = load_manifest(info.path).manifest.progress.loss;
      if (loss) known.push_back({info, *loss});
    } catch (const Error&) {
      // Skip damaged checkpoints.
    }
  }
  return known;
}

}  // namespace

std::optional<CheckpointLoss> last_before_rise(const fs::path& out) {
  std::optional<CheckpointLoss> last;
  double least = std::numeric_limits<double>::max();
  for (const CheckpointLoss& known : known_losses(out)) {
    if (has_risen(known.loss, least)) continue;
    least = std::min(least, known.loss);
    last = known;
  }
  return last;
}

std::string rise_warning(const fs::path& checkpoint) {
  const std::optional<double> loss = load_manifest(checkpoint).manifest.progress.loss;
  if (!loss) return "";
  const fs::path folder = plain_path(checkpoint);
  const auto step = step_of_folder_name(folder.filename().string());
  std::string other;
  if (step && folder.parent_path().filename() == checkpoints_folder({})) {
    const std::optional<CheckpointLoss> last = last_before_rise(folder.parent_path().parent_path());
    if (last && last->checkpoint.step >= *step) return "";
    if (last) {
      other =
          fmt::format("; the last one before it rose: {} (loss {:.4f})", last->checkpoint.path.string(), last->loss);
    }
  }
  if (std::isfinite(*loss) && other.empty()) return "";
  return fmt::format("the loss of {} is {:.6g}: the run had diverged{}", checkpoint.string(), *loss, other);
}

}  // namespace gptrain::checkpoint
