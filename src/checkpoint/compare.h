// What is in checkpoints, tensor by tensor: norms, differences, and averages. Memory holds a tensor of each at a time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/which_weights.h"

namespace gptrain {

// A table of all tensors: norm, largest magnitude, number of elements that are not finite. `sound` is false where there
// is such an element. Error(checkpoint) for a checkpoint that cannot be read.
struct TensorReport {
  std::string table;
  bool sound = true;
};
TensorReport report_tensors(const std::filesystem::path& checkpoint);

// A table of the tensors that differ: the largest difference of two elements, and the norm of the difference over that
// of `a`'s tensor; tensors of one checkpoint alone, or of another shape, are named. Last, how many have the same
// numbers.
std::string compare_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

// Writes OUT/checkpoints/step-N, of the newest's step: the mean of the checkpoints' weights, or of the averages
// that they hold, or their sum with the shares given, in f64 and rounded once. Config, tokenizer and dtypes are the
// newest's; there is no optimizer's state, so that no run resumes it. Error(usage): `out` exists, the models or
// tokenizers differ, there is not one share for each, or not an average in each; Error(checkpoint).
void average_checkpoints(const std::vector<std::filesystem::path>& checkpoints, const std::vector<double>& shares,
                         const std::filesystem::path& out, WhichWeights which = WhichWeights::trained);

}  // namespace gptrain
