// Text from a trained model.
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

namespace gptrain {

struct GenerateOptions {
  std::filesystem::path checkpoint;  // a checkpoint, or a run's folder (its newest)
  std::string tokenizer;             // as of `data pack`; empty: the checkpoint's
  std::vector<std::string> prompts;
  WhichWeights weights = WhichWeights::trained;
  int64_t tokens = 200;      // for each prompt
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 1;
  int threads = 0;   // 0: every core
  int64_t room = 0;  // tokens that there is memory for from the start, or more
};

// Continues each prompt by up to `tokens` tokens, fewer if the model ends the document; `emit` receives the prompt with
// its number, once the model is loaded, and then the text of one token after the other, in which a UTF-8 character may
// be cut in two. A prompt follows the end of a document, where documents have one. Runs in f32 on the CPU; token i of
// prompt p is drawn from Philox at (seed, i, p), so equal arguments give equal text. Beyond the model's sequence length
// only the last tokens are seen. A checkpoint that knows no tokenizer and has the vocabulary of "bytes" is one of
// "bytes". Throws Error(checkpoint) for a bad checkpoint, Error(usage) where no tokenizer is known, or the one named is
// not the checkpoint's, where the checkpoint has no average, and for a prompt that cannot be encoded.
void generate(const GenerateOptions& options, const std::function<void(size_t prompt, std::string_view text)>& emit);

// The same by the ranks of a world, of one prompt: the ranks of `parallel` that share a model hold their parts of it, in
// f32 on their hosts, and the others wait. Collective over the world; the groups are of such a config, on the host's
// memory. `text` is what follows the prompt, the same on every rank. Where some rank cannot begin (an Error as above, or
// no memory for its part), there is none on any, but a `reason`.
struct SharedText {
  std::optional<std::string> text;
  std::string reason = {};
};
SharedText generate_together(const GenerateOptions& options, const ParallelConfig& parallel, RankGroups& groups,
                             const World& world);

}  // namespace gptrain
