// The losses of a run's checkpoints, by which one is chosen after a divergence.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"

namespace gptrain {

struct CheckpointLoss {
  CheckpointInfo checkpoint;
  double loss = 0;  // of its step
};

// The newest checkpoint of a run's folder whose loss has not risen: it is no more than half above the lowest before it.
// Checkpoints that do not tell their loss do not count; none is left where no one does.
std::optional<CheckpointLoss> last_before_rise(const std::filesystem::path& out);

// A warning about a checkpoint whose loss is not finite, or has risen above that of earlier ones of its run, with the
// one to use instead; empty: there is nothing to warn of.
std::string rise_warning(const std::filesystem::path& checkpoint);

}  // namespace gptrain
