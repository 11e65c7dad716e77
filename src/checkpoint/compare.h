// Norms, differences and averages of checkpoints' tensors. Holds one tensor of each checkpoint in memory at a time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/which_weights.h"

namespace gptrain::inline checkpoint {

// Returns a table of all tensors: norm, largest magnitude, number of elements that are not finite. THROWS
// Error(checkpoint) if the checkpoint cannot be read.
std::string tensor_table(const std::filesystem::path& checkpoint);

// Returns a table of the tensors that differ, with the largest difference of two elements and the norm of the
// difference over the norm of `a`'s tensor. Names tensors that are in one checkpoint only or differ in shape. Ends with
// the number of tensors that are equal.
std::string compare_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

// Writes OUT/checkpoints/step-N with the mean of the checkpoints' weights (or of their averaged weights), or their sum
// weighted by `shares`, computed in f64 and rounded once. Step, config, tokenizer and dtypes are those of the newest
// checkpoint. Without optimizer state, no run can resume it. THROWS Error(usage) if `out` exists, the models or
// tokenizers differ, the number of shares is not that of the checkpoints, a share is negative or not finite, all are 0,
// or a checkpoint lacks the average; Error(checkpoint), also if a tensor's sum overflows or vanishes in its dtype.
void average_checkpoints(const std::vector<std::filesystem::path>& checkpoints, const std::vector<double>& shares,
                         const std::filesystem::path& out, WhichWeights which = WhichWeights::trained);

}  // namespace gptrain::checkpoint
