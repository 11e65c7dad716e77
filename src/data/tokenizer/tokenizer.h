// Text to tokens and back: "bytes" and byte-level BPE, with the ids that Hugging Face tokenizers and tiktoken give, and
// models of SentencePiece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/patterns.h"
#include "data/tokenizer/sentencepiece.h"
#include "data/tokenizer/unigram.h"

namespace gptrain {

// The "bytes" vocabulary.
constexpr int32_t end_of_document = 256;
constexpr int64_t bytes_vocabulary = 257;

// A token that is found in a text by its own text, before anything else is.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;            // stands for no text
  bool normalized = false;         // looked for after normalization, not before
  bool takes_left_space = false;   // the white space before it is part of it
  bool takes_right_space = false;  // the same behind it
};

// One step of parting a text into pieces; several steps part each other's pieces.
enum class SplitBehavior : uint8_t {
  isolated,              // a match is a piece, and what lies between is another
  only_matches,          // what lies between matches is dropped
  removed,               // matches are dropped
  merged_with_previous,  // a match ends the piece before it
  merged_with_next,      // a match begins the piece behind it
};
struct RegexStage {
  std::string regex;
  SplitBehavior behavior = SplitBehavior::isolated;
};
struct DigitsStage {};  // each number character is a piece
using Stage = std::variant<PatternKind, RegexStage, DigitsStage>;

// The pre-tokenizer of SentencePiece's models: a symbol for each space, and one before a text.
struct Metaspace {
  enum class Prepend : uint8_t { never, first, always };
  std::string symbol;
  Prepend prepend = Prepend::always;
};

// What a tokenizer is made of, however its file says it.
struct TokenizerParts {
  std::vector<std::string> tokens;  // bytes by id, or texts without byte_level; empty: no token of the merges
  std::vector<Merge> merges;
  bool ignore_merges = false;
  bool nfc = false;
  std::vector<NormalizerStep> normalizer;  // in place of nfc
  bool byte_level = true;                  // every text is bytes of tokens; else characters, as `characters` has it
  CharacterParts characters;
  UnigramParts unigram;
  std::optional<Metaspace> metaspace;
  bool strips_first_space = false;  // of a decoded text
  std::string text;                 // the file, where tokenizer_json() cannot write what it says
  bool add_prefix_space = false;
  std::vector<Stage> stages;
  std::vector<AddedToken> added;
  std::string source;  // the file, for messages
};

// Immutable; safe from several threads.
class Tokenizer {
 public:
  // Tokenizer "bytes": ids 0-255 are bytes, 256 ends a document.
  Tokenizer();
  // Throws Error(usage), naming the source, if a byte is no token or an added token has an id or a text that cannot be.
  explicit Tokenizer(TokenizerParts parts);
  // `source`: the file, for messages.
  Tokenizer(std::unique_ptr<const SentencePiece> model, std::string source);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  bool is_bytes() const { return !bpe_ && !unigram_ && !sentencepiece_; }
  const SentencePiece* sentencepiece() const { return sentencepiece_.get(); }  // null: it is none
  int64_t vocab_size() const { return vocab_size_; }                           // the largest id + 1
  const TokenizerParts& parts() const { return parts_; }

  // The id of an added token, or of a token with these bytes.
  std::optional<int32_t> id_of(std::string_view text) const;
  // The token that ends a document: 256 of "bytes"; </s> of SentencePiece; else the special token <|endoftext|>,
  // <|end_of_text|>, </s>, <eos> or
  // <|eot|>, the first of these that there is.
  std::optional<int32_t> end_of_document_id() const;

  bool has(int64_t id) const;
  // The bytes of a token; throws Error(data) for an id that is none. A special token gives its text, a token of
  // SentencePiece what it adds to a text (whose first space decode() leaves out).
  std::string_view text_of(int32_t id) const;
  // Bytes of text that each id stands for: 0 for special tokens, and for ids that are none.
  std::vector<int32_t> text_bytes() const;
  std::string decode(std::span<const int32_t> ids) const;

  // As last_safe_cut(), for this tokenizer's stages; always 0 where none can be known.
  size_t last_safe_cut(std::string_view text) const;

 private:
  friend class Encoder;

  // The added tokens of one kind, as a tree of their bytes.
  class Finder {
   public:
    void add(std::string_view content, int32_t index);
    bool empty() const { return nodes_.size() == 1; }
    struct Found {
      size_t begin;
      size_t end;
      int32_t index;
    };
    // The leftmost, and of several there the longest; nothing is index -1.
    Found find(std::string_view text, size_t from) const;

   private:
    struct Node {
      int32_t index = -1;
      std::vector<std::pair<char, uint32_t>> children;
    };
    std::vector<Node> nodes_ = std::vector<Node>(1);
    std::array<bool, 256> starts_{};
  };

  TokenizerParts parts_;
  void check_bytes() const;
  // As normalize(): false where `text` stays.
  bool normalize_text(std::string_view text, std::string& normalized) const;
  void encode_piece(std::string_view piece, Bpe::Scratch& scratch) const;

  std::unique_ptr<Bpe> bpe_;
  std::unique_ptr<Unigram> unigram_;
  std::vector<std::string> texts_;  // without byte_level: what a token adds to a text
  std::unique_ptr<const SentencePiece> sentencepiece_;
  int64_t vocab_size_ = bytes_vocabulary;
  Finder raw_tokens_;
  Finder normalized_tokens_;
  std::vector<const AddedToken*> added_by_id_;
  bool can_cut_ = true;
  std::string bytes_text_;  // of "bytes": all bytes in order
};

// Encodes texts with one tokenizer on one thread, and remembers pieces that it has met.
class Encoder {
 public:
  // Throws like Regex.
  explicit Encoder(std::shared_ptr<const Tokenizer> tokenizer);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // The ids of a text: what Hugging Face's encode(text, add_special_tokens=False) gives, or tiktoken's encode(text,
  // allowed_special="all"), or SentencePiece's Encode; with `special_as_text`, added tokens that are special are text
  // like any other. Valid until the next call. `text` is UTF-8; with the well-known patterns a byte that is not is a
  // symbol of its own. Throws Error(data) where a regular expression cannot be matched.
  std::span<const int32_t> encode(std::string_view text, bool special_as_text = false);
  // How often the last text held the text of a special token, whatever became of it; 0 with models of SentencePiece and
  // "bytes", which have no such tokens in texts.
  int64_t num_special() const;
  // One of them; empty for none.
  std::string_view special_in_text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain
