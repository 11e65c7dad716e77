// From a block of an input to the tokens of its documents.
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

namespace gptrain {

// Tokens in the width in which a token file stores them.
class TokenBuffer {
 public:
  // `narrow`: in 16 bits, which every id that is put in fits.
  explicit TokenBuffer(bool narrow) : narrow_(narrow) {}
  TokenBuffer() = default;

  bool narrow() const { return narrow_; }
  size_t size() const { return narrow_ ? ids16_.size() : ids32_.size(); }
  std::span<const uint16_t> ids16() const { return ids16_; }
  std::span<const int32_t> ids32() const { return ids32_; }

  void append(std::span<const int32_t> ids);
  void append(int32_t id) { append(std::span(&id, 1)); }
  // Each byte is an id.
  void append_bytes(std::string_view text);
  // Keeps the memory.
  void clear();

 private:
  bool narrow_ = false;
  std::vector<uint16_t> ids16_;
  std::vector<int32_t> ids32_;
};

// What becomes of a text of a special token within a document's text.
enum class SpecialInText : uint8_t {
  tokens,  // the token
  text,    // text like any other
  refuse,  // the document is left out
};

struct EncodeOptions {
  std::optional<int32_t> end_token;   // put behind each document
  bool replace_invalid_utf8 = false;  // by U+FFFD; else a document that is not UTF-8 is a fault
  bool narrow = false;                // as of TokenBuffer
  SpecialInText special_in_text = SpecialInText::tokens;
};

struct EncodedBlock {
  TokenBuffer ids;
  std::vector<size_t> ends;  // of each document, in ids; what is behind the last one goes on in the next block
  int64_t empty_documents = 0;
  int64_t text_bytes = 0;
  struct Fault {
    int64_t line;
    std::string reason;
  };
  static constexpr size_t max_faults = 10;
  std::vector<Fault> faults;  // the first max_faults
  int64_t num_faults = 0;
  int64_t special_in_text = 0;  // texts of special tokens that the documents held
  bool is_whole = true;  // false where a fault takes more than one document with it, or leaves one without its end
};

// One thread at a time.
class BlockEncoder {
 public:
  BlockEncoder(std::shared_ptr<const Tokenizer> tokenizer, const EncodeOptions& options);

  // `memory`: of an earlier result, whose memory the new one takes over.
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

}  // namespace gptrain
