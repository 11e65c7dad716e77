// Between the token files of several trainers: `gptrain data convert`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "data/flat_tokens.h"

namespace gptrain {

struct ConvertOptions {
  std::filesystem::path in;   // a PREFIX, or a file
  std::filesystem::path out;  // the same
  TokenFormat to = TokenFormat::megatron;
  // With it, a document of a format without documents ends behind this id; else the whole file is one.
  std::optional<int32_t> end_token;
  std::optional<DType> dtype = {};  // `in` is tokens of this type and nothing else; u16, or i32 for any of four bytes
};

struct ConvertResult {
  TokenFormat from = TokenFormat::megatron;
  int64_t tokens = 0;
  int64_t documents = 0;  // written; 0 where the format has none
};

// Tokens keep their size, 2 or 4 bytes, but for nanoGPT's, which are u16. Documents are lost where the format has none.
// OUT appears whole or not at all. `progress(done, total)` counts tokens. Throws Error(data) naming file and byte for
// what is damaged, and for tokens that the format asked for cannot hold; Error(usage) for options that do not go
// together.
ConvertResult convert_tokens(const ConvertOptions& options, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gptrain
