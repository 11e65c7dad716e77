// Generates text with a trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/which_weights.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "parallel/groups.h"

namespace gptrain::inline train {

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a checkpoint, or a run's folder, which means its newest checkpoint
  std::string tokenizer;             // a value of `data pack --tokenizer`; empty: the checkpoint's tokenizer
  std::vector<std::string> prompts;
  WhichWeights weights = WhichWeights::trained;
  int64_t tokens = 200;      // for each prompt
  double temperature = 0.8;  // 0: always the most probable token
  int64_t top_k = 0;         // draw from this many tokens; 0: from all
  uint64_t seed = 1;
  int threads = 0;              // 0: every core
  int64_t reserved_tokens = 0;  // least number of tokens to take memory for at the start
};

// Continues each prompt by up to `tokens` tokens, fewer if the model ends the document. Calls `emit` with the number
// and the text of each prompt once the model is loaded, and then with the text of each token, which may end inside a
// UTF-8 character. A prompt follows an end-of-document token if the tokenizer has one. Runs in f32 on the CPU. Token i
// of prompt p is drawn from Philox at (seed, i, p), so equal arguments give equal text. If a text is longer than the
// model's sequence length, the model sees its last tokens. A checkpoint without a tokenizer uses "bytes" if its
// vocabulary has that size. THROWS Error(checkpoint) for a bad checkpoint; Error(usage) if the tokenizer is not known
// or not the checkpoint's, if averaged weights are asked for and missing, or if a prompt cannot be encoded.
void generate(const GenerateOptions& options, const std::function<void(size_t prompt, std::string_view text)>& emit);

struct SharedText {
  std::optional<std::string> text;  // the text after the prompt; none if there is a reason
  std::string reason = {};          // error of a rank that could not begin
};
// Does the same for one prompt on the ranks of a world. The ranks of `parallel` that share a model hold their parts of
// it in f32 on their hosts; the others wait. Collective over the world. Returns the same on every rank. REQUIRES: the
// groups were made for a config with `parallel`, and use host memory.
SharedText generate_sharded(const GenerateOptions& options, const ParallelConfig& parallel, RankGroups& groups,
                            const World& world);

}  // namespace gptrain::train
