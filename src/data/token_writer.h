// Writes a token file: PREFIX.bin and PREFIX.idx (data/README.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "data/tokenizer/record.h"

namespace gptrain::inline data {

// Creates the folder of PREFIX if it is missing. Throws Error(data) if PREFIX names a folder, or if a folder has the
// name of one of the three files. Call it before the work whose result the files are to hold.
void prepare_token_prefix(const std::filesystem::path& prefix);

// Streams tokens to a temporary file beside PREFIX.bin; keeps 4 bytes per sequence and 8 per document in memory.
// finish() makes PREFIX appear whole: an existing PREFIX.idx is removed first, then the new .bin, its checksums
// (.meta.json) and, last, the new .idx are renamed, so that an .idx always belongs to its .bin. Creates the folder if
// missing. All methods throw Error(data), with the file's name, if it cannot be written.
class TokenWriter {
 public:
  // `dtype`: u16 or i32. A document of more than `max_sequence_tokens` is stored as several sequences.
  TokenWriter(const std::filesystem::path& prefix, DType dtype,
              int32_t max_sequence_tokens = std::numeric_limits<int32_t>::max());
  ~TokenWriter();  // without finish(): removes the temporary files

  // Adds tokens to the current document. Throws Error(data) for a token that dtype cannot hold.
  void append(std::span<const int32_t> tokens);
  // Does the same for u16 tokens in a u16 file.
  void append(std::span<const uint16_t> tokens);
  void end_document();
  // In packed files, ends a document within the sample. end_document() ends the sample.
  void end_document_in_sample();
  // Sets the tokenizer for PREFIX.meta.json; without this call it has none.
  void set_tokenizer(TokenizerRecord tokenizer);
  // Declares that documents are packed into samples of `length` (TokenMeta::best_fit_length).
  void set_best_fit_length(int64_t length);
  // REQUIRES: called after end_document(), as the last method.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
