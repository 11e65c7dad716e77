// One source of tokens on disk: PREFIX.bin and PREFIX.idx, the indexed dataset of Megatron-LM (data/README.md), or a
// file of tokens without an index.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "base/dtype.h"
#include "data/flat_tokens.h"
#include "data/mapped_file.h"
#include "data/source_record.h"
#include "data/token_meta.h"

namespace gptrain::inline data {

// The layout of PREFIX.idx, used by reader and writer.
namespace token_index {
constexpr std::string_view magic{"MMIDIDX\0\0", 9};
constexpr uint64_t version = 1;
constexpr int64_t version_at = 9;
constexpr int64_t dtype_at = 17;
constexpr int64_t num_sequences_at = 18;
constexpr int64_t num_boundaries_at = 26;
constexpr int64_t header_bytes = 34;
constexpr uint8_t i32_code = 4;
constexpr uint8_t u16_code = 8;
}  // namespace token_index

// Larger than every vocabulary: used to read a file whose vocabulary does not matter.
constexpr int64_t any_vocabulary = int64_t{1} << 31;
// Tokens read at a time by code that goes through a whole file.
constexpr int64_t chunk_tokens = int64_t{1} << 18;

// A mapped token file. Unless documents are packed into samples, all documents joined end to end are one run of
// num_tokens() tokens.
class TokenFile {
 public:
  // Opens a file. Checks every field of the index against both files' sizes and each other. With `checksums`, compares
  // each block of the .bin with PREFIX.meta.json, if it exists, when it is first read. A file without an index is one
  // document, see open_flat_tokens(); with `dtype` it has tokens of that type and nothing else. Throws Error(data) with
  // file and byte; Error(usage) for a `dtype` beside a header or an index.
  explicit TokenFile(const std::filesystem::path& path, bool checksums = true, std::optional<DType> dtype = {});

  TokenFormat format() const { return format_; }
  DType dtype() const { return dtype_; }  // u16 or i32
  int64_t num_tokens() const { return (tokens_.size_bytes() - first_byte_) / dtype_bytes(dtype_); }
  int64_t num_documents() const {
    if (!index_) return 1;
    return best_fit_length() > 0 ? num_sequences_ : num_boundaries_ - 1;
  }

  struct Range {
    int64_t first;
    int64_t count;
  };
  // Returns the tokens of a document. REQUIRES: 0 <= document < num_documents().
  Range document(int64_t document) const;
  // Returns the document that holds a token.
  int64_t document_of(int64_t token) const;
  // Returns the largest token; nullopt if PREFIX.meta.json does not tell it.
  std::optional<int64_t> largest_id() const { return meta_ ? meta_->largest_id : std::nullopt; }
  // Returns the most inputs of a sample if documents are packed into samples, each of at least 1 input and one more
  // target; 0: not packed.
  int64_t best_fit_length() const { return meta_ ? meta_->best_fit_length : 0; }
  // For packed files: the samples, and the tokens of one. REQUIRES: 0 <= sample < num_samples().
  int64_t num_samples() const { return num_boundaries_ - 1; }
  Range sample(int64_t sample) const;
  // Sets out[i] to the position in the range where the document of the i-th token begins, 0 if before the range.
  // REQUIRES: the range exists. Does not allocate; thread-safe.
  void document_starts(Range range, int32_t* out) const;

  // Copies tokens [range.first, range.first + range.count), which must exist, to `out`. Throws Error(data), with file
  // and byte, for a token that is negative or >= vocab_size. Does not allocate otherwise; thread-safe.
  void read(Range range, int64_t vocab_size, int32_t* out) const;

  // Returns the file's identity without its path and samples. Throws Error(data) if it cannot be read.
  SourceRecord identity() const;

  // Returns the number of checksummed blocks; 0 without PREFIX.meta.json, or if nothing is compared.
  int64_t num_checksums() const { return checked_ ? static_cast<int64_t>(meta_->blocks.size()) : 0; }
  // Compares a block, unless done before. Throws Error(data) with file and bytes.
  void check_block(int64_t block) const;
  // Drops the pages that were read from memory.
  void forget() const { tokens_.forget(); }

 private:
  struct Prefix {
    const std::filesystem::path& path;
  };
  TokenFile(const Prefix& prefix, bool checksums);
  explicit TokenFile(FlatTokens flat);

  void check_header();
  void check_sequences() const;
  void check_boundaries() const;
  void check_samples() const;
  int64_t length_at(int64_t sequence) const;    // offset in bytes in .idx
  int64_t offset_at(int64_t sequence) const;    // offset in bytes in .idx
  int64_t boundary_at(int64_t boundary) const;  // offset in bytes in .idx
  int64_t sequence_start(int64_t sequence) const;
  template <typename T>
  void read_as(Range range, int64_t vocab_size, int32_t* out) const;

  void compare_with_checksums() const;

  std::optional<MappedFile> index_;  // nullopt: the tokens are one document
  MappedFile tokens_;
  int64_t first_byte_ = 0;  // start of the tokens
  TokenFormat format_ = TokenFormat::megatron;
  std::optional<TokenMeta> meta_;
  std::unique_ptr<std::atomic<bool>[]> checked_;  // per block: true once compared; null: nothing is compared
  DType dtype_ = DType::u16;
  int64_t num_sequences_ = 0;
  int64_t num_boundaries_ = 0;
};

// Returns the type of a file's tokens by the name that its format has for it: i32 in an index, u32 in other files.
std::string_view stored_type(const TokenFile& file);

}  // namespace gptrain::data
