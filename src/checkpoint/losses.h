// The losses of a run's checkpoints, by which one is chosen after a divergence.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "config/run_config.h"

namespace gptrain::inline checkpoint {

struct CheckpointLoss {
  CheckpointInfo checkpoint;
  double loss = 0;  // loss of the checkpoint's step
};

// Returns the newest checkpoint of a run's folder whose loss has not risen: it is finite, and at most 1.5 times the
// lowest loss plus 0.1. The lowest loss is that of all checkpoints of the run up to this one, since the mixture last
// changed; where its manifest does not record it, only checkpoints that still exist count. Ignores checkpoints that are
// damaged or do not record their loss. Returns none if no checkpoint remains, or if the loss of each has risen.
std::optional<CheckpointLoss> last_before_rise(const std::filesystem::path& out);
// Returns the same among some of a folder's checkpoints, which are given in the order of their steps.
std::optional<CheckpointLoss> last_before_rise(const std::vector<CheckpointInfo>& checkpoints);

// Returns a text for the end of a message, "; the last one before the loss rose is ...", with the command that goes on
// from it; empty if there is none.
std::string way_before_rise(const std::filesystem::path& out);

// Returns a warning if the checkpoint's loss is not finite, is more than twice that of a model that has learned
// nothing, or has risen above that of earlier checkpoints, unless a later one has come down again; else empty. Names
// the checkpoint to use instead, if there is one. THROWS Error(checkpoint) if the manifest is damaged.
std::string rise_warning(const std::filesystem::path& checkpoint);

// The lowest loss of a run's checkpoints while they are saved, for their manifests. It begins anew where a phase of the
// mixture begins: other data have another loss.
class LowestLoss {
 public:
  // Goes on from a checkpoint of the run.
  void go_on(const RunProgress& progress);
  // Counts the next checkpoint. Returns the lowest loss up to it; none if that is not known.
  std::optional<double> add(const RunProgress& progress, const std::vector<DataPhase>& phases);

 private:
  bool is_known_ = true;  // false: goes on from a checkpoint that does not tell it
  int64_t step_ = 0;      // step of the last checkpoint
  std::optional<double> lowest_;
};

// Returns true if the checkpoint records a loss of its last step that is not finite.
bool has_lost_loss(const std::filesystem::path& checkpoint);

}  // namespace gptrain::checkpoint
