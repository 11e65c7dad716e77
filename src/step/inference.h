// Forward passes of a checkpoint's model over one sequence, for what comes next in it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/which_weights.h"
#include "config/run_config.h"
#include "ops/backend.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"
#include "step/step_design.h"

namespace gptrain {

// Tokens of one text of run.sample_every_steps that memory is planned for, its prompt included. A byte of the prompt is
// one token at most, and one token may stand before it.
int64_t most_tokens_of_sample(const RunConfig& config);

// In f32, on the ranks that share a model: its tensor ranks and pipeline stages, each with its part of the weights.
// Everything is collective over these ranks. On a CPU, whose memory the groups work on.
class Inference {
 public:
  // Loads the weights. Borrows the backend and the groups, which are those of `config`, of which ZeRO and sequence
  // parallelism do not count. Error(checkpoint), and Error(usage) where the checkpoint has no average.
  Inference(const RunConfig& config, const std::filesystem::path& checkpoint, WhichWeights weights, RankGroups& groups,
            Backend& backend);
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  // What it takes on a rank after reserve(size), on such a CPU.
  static int64_t bytes(const RunConfig& config, const Target& target, RankGroups& groups, int64_t size);

  // Makes ready for passes over `size` tokens, or as many as the model sees at once. Memory that has been taken is kept;
  // a pass over more tokens takes more.
  void reserve(int64_t size);
  // Logits over the true vocabulary after `sequence`, of which the last tokens that the model sees count, and whose
  // document begins at `begin`. On the first tensor rank of the last stage; nothing on others.
  std::vector<float> next_logits(const std::vector<int32_t>& sequence, int64_t begin);

 private:
  class Pass;

  // Lengths grow in steps, so that short texts do not pay for the model's whole length.
  static int64_t length_for(const RunConfig& config, int64_t size);

  const RunConfig config_;
  RankGroups& groups_;
  Backend& backend_;
  std::unique_ptr<DeviceMemory> weights_;
  std::array<std::unique_ptr<DeviceMemory>, num_memory_classes> arenas_;
  std::unique_ptr<DeviceMemory> scratch_;
  std::unique_ptr<Pass> pass_;
};

}  // namespace gptrain
