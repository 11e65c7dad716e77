#include "checkpoint/losses.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <vector>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/model_check.h"

namespace gptrain::inline checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr double most_rise = 1.5, noise = 0.1;
constexpr double most_of_guesses = 2;  // factor of the loss of a model that has learned nothing

bool has_risen(double loss, double least) { return !std::isfinite(loss) || loss > most_rise * least + noise; }

struct KnownLoss {
  CheckpointLoss own;
  std::optional<double> lowest;  // lowest loss of the run up to here; none: not known
};

// Returns the loss of a checkpoint that records it.
std::optional<KnownLoss> known_loss(const CheckpointInfo& info) {
  try {
    const RunProgress progress = load_manifest(info.path).manifest.progress;
    if (progress.loss) return KnownLoss{{info, *progress.loss}, progress.lowest_loss};
  } catch (const Error&) {
    // Skip damaged checkpoints.
  }
  return std::nullopt;
}

}  // namespace

std::optional<CheckpointLoss> last_before_rise(const fs::path& out) { return last_before_rise(list_checkpoints(out)); }

std::optional<CheckpointLoss> last_before_rise(const std::vector<CheckpointInfo>& checkpoints) {
  // Manifests that know the lowest loss tell it without those before them.
  std::vector<KnownLoss> older;
  for (auto newest = checkpoints.rbegin(); newest != checkpoints.rend(); ++newest) {
    const std::optional<KnownLoss> known = known_loss(*newest);
    if (!known) continue;
    if (known->lowest && !has_risen(known->own.loss, *known->lowest)) {
      older.push_back(*known);
      break;
    }
    older.push_back(*known);
  }
  std::optional<CheckpointLoss> last;
  double least = std::numeric_limits<double>::max();
  for (auto known = older.rbegin(); known != older.rend(); ++known) {
    if (has_risen(known->own.loss, known->lowest.value_or(least))) continue;
    least = std::min(least, known->own.loss);
    last = known->own;
  }
  return last;
}

void LowestLoss::go_on(const RunProgress& progress) {
  lowest_ = progress.lowest_loss;
  is_known_ = lowest_ || progress.step == 0;
  step_ = progress.step;
}

std::optional<double> LowestLoss::add(const RunProgress& progress, const std::vector<DataPhase>& phases) {
  for (const DataPhase& phase : phases) {
    if (phase.until_step < step_ || phase.until_step >= progress.step) continue;
    lowest_.reset();
    is_known_ = true;
  }
  step_ = progress.step;
  if (is_known_ && progress.loss && std::isfinite(*progress.loss))
    lowest_ = std::min(lowest_.value_or(*progress.loss), *progress.loss);
  return lowest_;
}

std::string way_before_rise(const fs::path& out) {
  const auto last = last_before_rise(out);
  if (!last) return "";
  return fmt::format("; the last one before the loss rose is of step {}, with loss {:.4f}: --resume {} goes on from it",
                     last->checkpoint.step, last->loss, last->checkpoint.path.string());
}

std::string rise_warning(const fs::path& checkpoint) {
  const Manifest manifest = load_manifest(checkpoint).manifest;
  const std::optional<double> loss = manifest.progress.loss;
  if (!loss) return "";
  const double of_guesses = std::log(static_cast<double>(saved_config(checkpoint, manifest).model.vocab_size));
  const auto is_lost = [&](double value) { return !(value <= most_of_guesses * of_guesses); };
  const fs::path folder = plain_path(checkpoint);
  const auto step = step_of_folder_name(folder.filename().string());
  std::string other;
  if (step && folder.parent_path().filename() == checkpoints_folder({})) {
    const std::optional<CheckpointLoss> last = last_before_rise(folder.parent_path().parent_path());
    const bool has_recovered = last && last->checkpoint.step >= *step;
    if (has_recovered && !is_lost(*loss)) return "";
    if (last && !has_recovered && !is_lost(last->loss)) {
      other =
          fmt::format("; the last one before it rose: {} (loss {:.4f})", last->checkpoint.path.string(), last->loss);
    }
  }
  const std::optional<double> lowest = manifest.progress.lowest_loss;
  if (other.empty() && lowest && has_risen(*loss, *lowest))
    other = fmt::format("; earlier checkpoints of its run had reached {:.4f}", *lowest);
  if (!is_lost(*loss) && other.empty()) return "";
  // All checkpoints that are left may be of a diverged state.
  if (other.empty()) other = fmt::format("; a model that has learned nothing has a loss of {:.4f}", of_guesses);
  return fmt::format("the loss of {} is {:.6g}: the run had diverged{}", checkpoint.string(), std::abs(*loss), other);
}

bool has_lost_loss(const fs::path& checkpoint) {
  const std::optional<double> loss = load_manifest(checkpoint).manifest.progress.loss;
  return loss && !std::isfinite(*loss);
}

}  // namespace gptrain::checkpoint
