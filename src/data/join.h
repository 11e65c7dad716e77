// Joins several token files: `gptrain data join`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace gptrain::inline data {

struct JoinResult {
  int64_t documents = 0;
  int64_t tokens = 0;
};

// Writes the documents of all inputs, in order, to PREFIX.bin and PREFIX.idx, as Megatron-LM's merge_datasets.py does.
// Inputs are PREFIXes. Throws Error(data) for damaged inputs; Error(usage) for inputs of different dtypes or
// tokenizers, without an index, or that would be overwritten. `progress(done, total)` counts tokens.
JoinResult join_token_files(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& out,
                            const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gptrain::data
