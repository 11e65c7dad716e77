// The losses of a run's checkpoints, by which one is chosen after a divergence.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace gptrain::inline checkpoint {

struct CheckpointLoss {
  CheckpointInfo checkpoint;
  double loss = 0;  // loss of the checkpoint's step
};

// Returns the newest checkpoint of a run's folder whose loss has not risen: it is at most half above the lowest earlier
// loss. Ignores checkpoints that do not record their loss; returns none if no checkpoint is left.
std::optional<CheckpointLoss> last_before_rise(const std::filesystem::path& out);
// Returns the same among some of a folder's checkpoints, which are given in the order of their steps.
std::optional<CheckpointLoss> last_before_rise(const std::vector<CheckpointInfo>& checkpoints);

// Returns a text for the end of a message, "; the last one before the loss rose is ...", with the command that goes on
// from it; empty if there is none.
std::string way_before_rise(const std::filesystem::path& out);

// Returns a warning if the checkpoint's loss is not finite, has risen above that of earlier ones of its run, with the
// one to use instead, or is more than twice that of a model that has learned nothing; else empty.
std::string rise_warning(const std::filesystem::path& checkpoint);

// Returns true if the checkpoint records a loss of its last step that is not finite.
bool has_lost_loss(const std::filesystem::path& checkpoint);

}  // namespace gptrain::checkpoint
