// Text from a trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a checkpoint, or a run's folder (its newest)
  std::string tokenizer;             // as of `data pack`; empty: the checkpoint's
  std::vector<std::string> prompts;
  int64_t tokens = 200;      // for each prompt
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 1;
  int threads = 0;  // 0: every core
};

// Continues each prompt by up to `tokens` tokens, fewer if the model ends the document; `emit` receives the prompt with
// its number, once the model is loaded, and then the text of one token after the other, in which a UTF-8 character may
// be cut in two. A prompt follows the end of a document, where documents have one. Runs in f32 on the CPU; token i of
// prompt p is drawn from Philox at (seed, i, p), so equal arguments give equal text. Beyond the model's sequence length
// only the last tokens are seen. A checkpoint that knows no tokenizer and has the vocabulary of "bytes" is one of
// "bytes". Throws Error(checkpoint) for a bad checkpoint, Error(usage) where no tokenizer is known, or the one named is
// not the checkpoint's, and for a prompt that cannot be encoded.
void generate(const GenerateOptions& options, const std::function<void(size_t prompt, std::string_view text)>& emit);

}  // namespace gptrain
