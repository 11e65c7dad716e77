// PREFIX.meta.json: what PREFIX.bin must hold, by its size and a checksum of each 64 MiB, which tokenizer made it, and
// whether its documents lie in samples (data/README.md). Other writers of token files know no such file; where there is none, nothing is compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/record.h"

namespace gptrain {

struct TokenMeta {
  int64_t bytes = 0;  // of PREFIX.bin
  int64_t tokens = 0;
  std::vector<uint32_t> blocks;  // CRC-32C of each block; the last may be shorter
  std::optional<TokenizerRecord> tokenizer = {};
  // Above 0: the documents lie in samples of at most so many inputs, each of which the index gives as a document, with
  // the documents as its sequences.
  int64_t best_fit_length = 0;
  std::optional<int64_t> largest_id = {};  // none in files of older programs
};

constexpr int64_t checksum_block_bytes = int64_t{64} << 20;

// Checksums of a file that comes in pieces, from front to back.
class BlockChecksums {
 public:
  void add(const void* data, size_t bytes);
  int64_t bytes() const { return bytes_; }
  const std::vector<uint32_t>& blocks() const { return blocks_; }

 private:
  int64_t bytes_ = 0;
  std::vector<uint32_t> blocks_;
};

std::string format_token_meta(const TokenMeta& meta);

// Throws Error(`code`): tokens up to `largest_id`, where it is known, are not all below `vocab_size`.
void require_vocabulary(const std::string& path, std::optional<int64_t> largest_id, int64_t vocab_size, ExitCode code);

// Nothing where there is no PREFIX.meta.json. Error(data): it cannot be read, or is none.
std::optional<TokenMeta> read_token_meta(const std::filesystem::path& prefix);

}  // namespace gptrain
