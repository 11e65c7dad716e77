// A model's shape in words, for the dry run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/run_config.h"

namespace gptrain::inline report {

// Returns the shape in a line: "12 layers, hidden 768, ...". `tensor_size`: tensor ranks, which pad the vocabulary.
std::string model_line(const ModelConfig& model, int64_t tensor_size);

// Returns which pairs of queries and keys model FLOPs count: "causal half" of dense attention, or another text.
std::string_view pairs_text(const ModelConfig& model);

}  // namespace gptrain::report
