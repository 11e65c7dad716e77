// A checkpoint may hold two sets of weights: those that are trained, and their average (optimizer.ema).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/contents.h"

namespace gptrain {

enum class WhichWeights : uint8_t { trained, averaged };

// The name of such a tensor in a checkpoint: "weight/NAME", "ema/NAME".
std::string stored_name(WhichWeights which, std::string_view tensor);

// Error(usage), of the option --ema: the average is asked for, and there is none, or none yet: the first update begins
// it.
void require_weights(const Contents& contents, WhichWeights which);

}  // namespace gptrain
