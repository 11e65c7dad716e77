// A checkpoint may hold two sets of weights: those that are trained, and their average (optimizer.ema).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/contents.h"

namespace gptrain::inline checkpoint {

enum class WhichWeights : uint8_t { trained, averaged };

// Returns the name of a tensor's weights in a checkpoint: "weight/NAME" or "ema/NAME".
std::string stored_name(WhichWeights which, std::string_view tensor);

// THROWS Error(usage) about the option --ema if the average is asked for but the checkpoint has none, or none yet
// because the first update begins it.
void require_weights(const Contents& contents, WhichWeights which);

}  // namespace gptrain::checkpoint
