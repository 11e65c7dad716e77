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
#include "data/token_meta.h"

namespace gptrain {

// The layout of PREFIX.idx, shared by reader and writer.
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

// No vocabulary is larger: a file is read with it whose vocabulary does not matter.
constexpr int64_t any_vocabulary = int64_t{1} << 31;
// Tokens that are read at once by what goes through a whole file.
constexpr int64_t chunk_tokens = int64_t{1} << 18;

// PREFIX with ".bin" or ".idx" put behind it; a dot inside PREFIX is part of the name.
std::filesystem::path token_file_path(const std::filesystem::path& prefix, std::string_view suffix);

// Whether `path` leads to one: a PREFIX, or a file without an index.
bool is_token_file(const std::filesystem::path& path);
// Whether it is a file without an index (flat_tokens.h); false where nothing is there.
bool is_flat_token_file(const std::filesystem::path& path);

// The files mapped. All documents joined end to end form one run of num_tokens() tokens, unless they lie in samples.
class TokenFile {
 public:
  // Checks every field of the index against the sizes of both files and against each other. With `checksums`, blocks of
  // the .bin are compared with PREFIX.meta.json, where there is one, as they are first read. A file without an index is
  // one document. Throws Error(data) naming file and byte.
  explicit TokenFile(const std::filesystem::path& path, bool checksums = true);
  // A file of tokens of that type and nothing else.
  TokenFile(const std::filesystem::path& path, DType dtype);

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
  // The tokens of a document, 0 <= document < num_documents().
  Range document(int64_t document) const;
  // Above 0: the documents lie in samples, each of 1 to so many inputs and one target more. 0: they do not.
  int64_t best_fit_length() const { return meta_ ? meta_->best_fit_length : 0; }
  // Of a file with a best_fit_length: its samples, and the tokens of one, 0 <= sample < num_samples().
  int64_t num_samples() const { return num_boundaries_ - 1; }
  Range sample(int64_t sample) const;
  // out[i] is how far into the range the document begins that holds its i-th token: 0 where it begins before the range.
  // The range must exist. Does not allocate; safe from several threads.
  void document_starts(Range range, int32_t* out) const;

  // Copies tokens [range.first, range.first + range.count), which must exist, to `out`. Throws Error(data) naming file
  // and byte for a token that is negative or >= vocab_size. Does not allocate otherwise; safe from several threads.
  void read(Range range, int64_t vocab_size, int32_t* out) const;

  // Blocks of PREFIX.meta.json; 0 where there is none, or none to compare with.
  int64_t num_checksums() const { return checked_ ? static_cast<int64_t>(meta_->blocks.size()) : 0; }
  // Compares that block, unless it has been. Throws Error(data) naming file and bytes.
  void check_block(int64_t block) const;
  // Lets go of the memory in which the system keeps what was read.
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
  int64_t length_at(int64_t sequence) const;    // bytes into .idx
  int64_t offset_at(int64_t sequence) const;    // bytes into .idx
  int64_t boundary_at(int64_t boundary) const;  // bytes into .idx
  int64_t sequence_start(int64_t sequence) const;
  int64_t document_of(int64_t token) const;
  template <typename T>
  void read_as(Range range, int64_t vocab_size, int32_t* out) const;

  void compare_with_checksums() const;

  std::optional<MappedFile> index_;  // nothing: the tokens are one document
  MappedFile tokens_;
  int64_t first_byte_ = 0;  // of the tokens
  TokenFormat format_ = TokenFormat::megatron;
  std::optional<TokenMeta> meta_;
  std::unique_ptr<std::atomic<bool>[]> checked_;  // of each block: it was compared; null where none is
  DType dtype_ = DType::u16;
  int64_t num_sequences_ = 0;
  int64_t num_boundaries_ = 0;
};

}  // namespace gptrain
