// Writes a token file: PREFIX.bin and PREFIX.idx (data/README.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "data/tokenizer/record.h"

namespace gptrain {

// Streams tokens to a temporary file beside PREFIX.bin; keeps 4 bytes per sequence and 8 per document in memory.
// PREFIX appears whole in finish() or not at all: an existing PREFIX.idx is removed first, then the new .bin, its
// checksums (.meta.json) and, last, the new .idx take their names, so that an .idx always belongs to its .bin. The
// folder is made where it is missing. All methods throw Error(data) naming the file if it cannot be written.
class TokenWriter {
 public:
  // dtype: u16 or i32. A document of more than `max_sequence_tokens` is stored as several sequences.
  TokenWriter(const std::filesystem::path& prefix, DType dtype,
              int32_t max_sequence_tokens = std::numeric_limits<int32_t>::max());
  ~TokenWriter();  // without finish(): removes the temporary files

  // Adds tokens to the current document. Throws Error(data) for a token that dtype cannot hold.
  void append(std::span<const int32_t> tokens);
  // The same in a file of u16, for tokens that have its width.
  void append(std::span<const uint16_t> tokens);
  void end_document();
  // For files of samples: the next document begins, in the same sample. end_document() ends that.
  void end_document_in_sample();
  // What PREFIX.meta.json says of the tokenizer; nothing, where this is not called.
  void set_tokenizer(TokenizerRecord tokenizer);
  // Documents lie in samples of that length (TokenMeta::best_fit_length); they do not, where this is not called.
  void set_best_fit_length(int64_t length);
  // Call after end_document(); nothing may follow.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
