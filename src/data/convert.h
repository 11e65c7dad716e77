// Converts between the token files of several trainers: `gptrain data convert`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "data/flat_tokens.h"

namespace gptrain::inline data {

struct ConvertOptions {
  std::filesystem::path in;   // PREFIX, or a file
  std::filesystem::path out;  // PREFIX, or a file
  TokenFormat to = TokenFormat::megatron;
  // Id that ends a document in formats without documents; nullopt: the whole file is one document.
  std::optional<int32_t> end_token;
  std::optional<DType> dtype = {};  // `in` is tokens of this type and nothing else; u16, or i32 for any of four bytes
};

struct ConvertResult {
  TokenFormat from = TokenFormat::megatron;
  int64_t tokens = 0;
  int64_t documents = 0;  // documents written; 0 if the format has none
};

// Converts a token file. Tokens keep their size, 2 or 4 bytes, except nanoGPT's, which are u16. Documents are lost if
// the output format has none. The output appears whole or not at all. `progress(done, total)` counts tokens. Throws
// Error(data), with file and byte, for damage and for tokens that the format cannot hold; Error(usage) for options that
// do not go together.
ConvertResult convert_tokens(const ConvertOptions& options, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gptrain::data
