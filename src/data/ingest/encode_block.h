// Encodes a block of an input into the tokens of its documents.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/ingest/block_texts.h"
#include "data/tokenizer/tokenizer.h"

namespace gptrain::inline data {

// Tokens, in 16 or 32 bits as the token file stores them.
class TokenBuffer {
 public:
  // `narrow`: stores 16 bits per id. REQUIRES: each appended id fits.
  explicit TokenBuffer(bool narrow) : narrow_(narrow) {}
  TokenBuffer() = default;

  bool narrow() const { return narrow_; }
  size_t size() const { return narrow_ ? ids16_.size() : ids32_.size(); }
  std::span<const uint16_t> ids16() const { return ids16_; }
  std::span<const int32_t> ids32() const { return ids32_; }

  void append(std::span<const int32_t> ids);
  void append(int32_t id) { append(std::span(&id, 1)); }
  // Appends each byte as an id.
  void append_bytes(std::string_view text);
  // Keeps the memory.
  void clear();

 private:
  bool narrow_ = false;
  std::vector<uint16_t> ids16_;
  std::vector<int32_t> ids32_;
};

// Treatment of a special token's text within a document.
enum class SpecialInText : uint8_t {
  tokens,  // the token
  text,    // text like any other
  refuse,  // the document is left out
};

struct EncodeOptions {
  std::optional<int32_t> end_token;   // appended to each document; nullopt: none
  bool replace_invalid_utf8 = false;  // with U+FFFD; else invalid UTF-8 is a fault
  bool narrow = false;                // see TokenBuffer
  SpecialInText special_in_text = SpecialInText::tokens;
};

struct EncodedBlock {
  TokenBuffer ids;
  std::vector<size_t> ends;  // end of each document in `ids`; ids after the last end continue in the next block
  int64_t empty_documents = 0;
  int64_t text_bytes = 0;
  struct Fault {
    int64_t line;
    std::string reason;
  };
  static constexpr size_t max_faults = 10;
  std::vector<Fault> faults;  // the first max_faults
  int64_t num_faults = 0;
  int64_t special_in_text = 0;  // special tokens found in the documents' texts
  std::optional<Fault> stop;    // the first fault that lost an unknown number of documents, or cut one off
};

// Not thread-safe.
class BlockEncoder {
 public:
  BlockEncoder(std::shared_ptr<const Tokenizer> tokenizer, const EncodeOptions& options);

  // `memory`: ids of an earlier result, whose memory the new result reuses.
  EncodedBlock encode(const TextBlock& block, TokenBuffer memory = {});

 private:
  bool append_encoded(std::string_view text, int64_t line);
  void end_document(bool has_more);
  void fault(int64_t line, const std::string& reason);

  std::shared_ptr<const Tokenizer> tokenizer_;
  EncodeOptions options_;
  Encoder encoder_;
  BlockTexts texts_;
  EncodedBlock out_;
};

}  // namespace gptrain::data
