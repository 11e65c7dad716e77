// Text from a trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace gptrain {

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a checkpoint, or a run's folder (its newest)
  std::string prompt;
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 1;
};

// Samples up to `tokens` tokens, fewer if the model ends the document; `emit` receives the prompt, once the model is
// loaded, and then each token as text. The model must have been trained on the "bytes" vocabulary. Runs in f32 on the
// CPU; token i is drawn from Philox at (seed, i), so equal arguments give equal text. Beyond the model's sequence
// length only the last tokens are seen. Throws Error(checkpoint) for a bad checkpoint, Error(usage) for another
// vocabulary.
void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit);

}  // namespace gptrain
