// Joins several token files: `gptrain data join`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "base/dtype.h"

namespace gptrain::inline data {

struct JoinResult {
  int64_t documents = 0;
  int64_t tokens = 0;
  bool has_tokenizer = false;  // all inputs name one, whose text is in the output
};

// Writes the documents of all inputs, in order, to PREFIX.bin and PREFIX.idx, as Megatron-LM's merge_datasets.py does.
// A file without an index is one document. Throws Error(data) for damaged inputs; Error(usage) for inputs of different
// dtypes or tokenizers, or that would be overwritten. `progress(done, total)` counts tokens. `dtype`: see TokenFile.
JoinResult join_token_files(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& out,
                            const std::function<void(int64_t, int64_t)>& progress, std::optional<DType> dtype = {});

}  // namespace gptrain::data
