// PREFIX.meta.json: size and checksums (per 64 MiB) of PREFIX.bin, its tokenizer, and whether documents are packed into
// samples (data/README.md). Other writers of token files do not have it; without it nothing is compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/record.h"

namespace gptrain::inline data {

struct TokenMeta {
  int64_t bytes = 0;  // size of PREFIX.bin
  int64_t tokens = 0;
  std::vector<uint32_t> blocks;  // CRC-32C of each block; the last may be shorter
  std::optional<TokenizerRecord> tokenizer = {};
  // > 0: documents are packed into samples of at most this many inputs; the index has each sample as a document, and
  // its documents as sequences.
  int64_t best_fit_length = 0;
  std::optional<int64_t> largest_id = {};  // none in files of older programs
};

constexpr int64_t checksum_block_bytes = int64_t{64} << 20;

// Computes the checksums of a file that comes in pieces, from front to back.
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

// Throws Error(`code`) unless all tokens up to `largest_id`, if it is known, are below `vocab_size`.
void require_vocabulary(const std::string& path, std::optional<int64_t> largest_id, int64_t vocab_size, ExitCode code);

// Returns nullopt if there is no PREFIX.meta.json. Throws Error(data) if it cannot be read or is invalid.
std::optional<TokenMeta> read_token_meta(const std::filesystem::path& prefix);

}  // namespace gptrain::data
