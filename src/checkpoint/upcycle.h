// A mixture of experts made of a dense checkpoint: every expert begins as the dense FFN (arXiv 2212.05055).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace gptrain::inline checkpoint {

struct Upcycled {
  int64_t blocks = 0;  // number of blocks whose FFN was copied
  int64_t experts = 0;
  int64_t dense_parameters = 0, parameters = 0;
  std::vector<std::string> notes = {};
};

// Writes the weights of `checkpoint` to the checkpoint `out`, which must not exist, as those of a model with `moe`: the
// text of model.moe. In blocks with experts each expert is a copy of the FFN, and the router has the initial weights
// that a run with the checkpoint's seed gives it. Optimizer state is left out. If the router's weights add up to 1, the
// mixture computes the same as the dense model, except for rounding. Memory holds two copies of the largest tensor.
// THROWS Error(usage) for a `moe` that the model cannot have, or whose experts have another width than the FFN;
// Error(checkpoint) for a damaged checkpoint or one that has experts already. `out` then does not exist.
Upcycled upcycle_checkpoint(const std::filesystem::path& checkpoint, const std::string& moe,
                            const std::filesystem::path& out);

}  // namespace gptrain::checkpoint
