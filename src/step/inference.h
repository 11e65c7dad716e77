// Forward passes of a checkpoint's model over one sequence, to predict the next token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/enum_array.h"
#include "checkpoint/which_weights.h"
#include "config/run_config.h"
#include "ops/backend.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "parallel/parameters.h"
#include "step/step_design.h"

namespace gptrain::inline step {

// Returns the most tokens of one text of run.sample_every_steps, prompt included; memory is planned for it. Each byte
// of the prompt is at most one token, and two more may precede it.
int64_t most_tokens_of_sample(const RunSettings& run);

// Returns the config of groups for an Inference: the ranks of a model hold whole experts, however training spreads
// them.
RunConfig with_whole_experts(RunConfig config);

// Computes in f32 on the ranks that share a model: its tensor ranks and pipeline stages, each with its part of the
// weights. Every function except `bytes` is collective over these ranks.
// REQUIRES: a CPU backend, whose memory the groups work on.
class Inference {
 public:
  // Loads the weights. Borrows the backend and the groups. REQUIRES: the groups are those of
  // with_whole_experts(config), whose ZeRO and sequence parallelism are ignored. THROWS Error(checkpoint), and
  // Error(usage) if averaged weights are asked for and the checkpoint has none.
  Inference(const RunConfig& config, const std::filesystem::path& checkpoint, WhichWeights weights, RankGroups& groups,
            Backend& backend);
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  // Returns the bytes that an Inference takes on this rank of `groups` after reserve(size) on the CPU `target`, the
  // weights included. Allocates nothing.
  static int64_t bytes(const RunConfig& config, const Target& target, RankGroups& groups, int64_t size);

  // Takes memory for passes over `size` tokens, at most the model's sequence length. Later passes over fewer tokens
  // keep this memory; a pass over more tokens takes more. next_logits does it too. THROWS Error(machine) if there is
  // not enough memory.
  void reserve(int64_t size);
  // Returns the logits of the true vocabulary after `sequence`, on the first tensor rank of the last stage; empty on
  // other ranks. Only the last tokens count, as many as the model's sequence length. `begin`: index in `sequence` at
  // which its last document begins. REQUIRES: `sequence` has a token, and is the same on all ranks.
  std::vector<float> next_logits(const std::vector<int32_t>& sequence, int64_t begin);

 private:
  class Pass;

  // Rounds up to a multiple of 64, at most the model's sequence length: short texts run shorter passes.
  static int64_t length_for(const StepConfig& config, int64_t size);

  const RunConfig config_;
  RankGroups& groups_;
  Backend& backend_;
  std::unique_ptr<DeviceMemory> weights_;
  EnumArray<MemoryClass, std::unique_ptr<DeviceMemory>, num_memory_classes> arenas_;
  std::unique_ptr<DeviceMemory> scratch_;
  std::unique_ptr<Pass> pass_;
};

}  // namespace gptrain::step
