// Encodes text to tokens and decodes it: "bytes", BPE and unigram models with the ids of Hugging Face tokenizers and
// tiktoken, and SentencePiece models.
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

namespace gptrain::inline data {

// The "bytes" vocabulary.
constexpr int32_t end_of_document = 256;
constexpr int64_t bytes_vocabulary = 257;

// A token that is searched by its text before the rest of a text is split.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;            // a control token: encodes no part of a text
  bool normalized = false;         // searched in the normalized text, not in the original
  bool takes_left_space = false;   // includes the white space before it
  bool takes_right_space = false;  // includes the white space after it
};

// A step that splits a text into pieces. Each step splits the pieces of the step before it.
enum class SplitBehavior : uint8_t {
  isolated,              // matches are pieces, and so are the parts between them
  only_matches,          // parts between matches are dropped
  removed,               // matches are dropped
  merged_with_previous,  // each match is joined to the part before it
  merged_with_next,      // each match is joined to the part after it
};
struct RegexStage {
  std::string regex;
  SplitBehavior behavior = SplitBehavior::isolated;
};
struct DigitsStage {};  // each number character becomes a piece
using Stage = std::variant<PatternKind, RegexStage, DigitsStage>;

// The pre-tokenizer of SentencePiece models: replaces each space with a symbol, and puts one before a text.
struct Metaspace {
  enum class Prepend : uint8_t { never, first, always };
  std::string symbol;
  Prepend prepend = Prepend::always;
};

// Parts of a tokenizer, independent of its file's format.
struct TokenizerParts {
  std::vector<std::string> tokens;  // by id: bytes, or text without byte_level; empty: not a token of the merges
  std::vector<Merge> merges;
  bool ignore_merges = false;
  bool nfc = false;
  std::vector<NormalizerStep> normalizer;  // replaces nfc
  bool byte_level = true;                  // tokens are made of bytes; false: of characters, see `characters`
  CharacterParts characters;
  UnigramParts unigram;
  std::optional<Metaspace> metaspace;
  bool strips_first_space = false;  // decode() drops a text's first space
  std::string text;                 // the file's text if tokenizer_json() cannot write an equal one; else empty
  bool add_prefix_space = false;
  std::vector<Stage> stages;
  std::vector<AddedToken> added;
  std::string source;  // name of the file, for messages
};

// Immutable; thread-safe.
class Tokenizer {
 public:
  // Tokenizer "bytes": ids 0-255 are bytes, 256 ends a document.
  Tokenizer();
  // Throws Error(usage), with the source, if a byte is no token or an added token has an invalid id or text.
  explicit Tokenizer(TokenizerParts parts);
  // `source`: name of the file, for messages.
  Tokenizer(std::unique_ptr<const SentencePiece> model, std::string source);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  bool is_bytes() const { return !bpe_ && !unigram_ && !sentencepiece_; }
  const SentencePiece* sentencepiece() const { return sentencepiece_.get(); }  // null: not a SentencePiece model
  int64_t vocab_size() const { return vocab_size_; }                           // largest id + 1
  const TokenizerParts& parts() const { return parts_; }

  // Returns the id of the added token, else of the token, with this text; nullopt if there is none.
  std::optional<int32_t> id_of(std::string_view text) const;
  // Returns the token that ends a document. "bytes": 256; SentencePiece: </s>; else the first special token that exists
  // of <|endoftext|>, <|end_of_text|>, </s>, <eos> and <|eot|>. nullopt if there is none.
  std::optional<int32_t> end_of_document_id() const;

  bool has(int64_t id) const;
  // Returns a token's bytes; for a special token its text, for a SentencePiece token the text that it adds (decode()
  // drops a text's first space). Throws Error(data) for an id that is no token.
  std::string_view text_of(int32_t id) const;
  // Returns the number of text bytes of each id: 0 for special tokens and for ids that are no token.
  std::vector<int32_t> text_bytes() const;
  std::string decode(std::span<const int32_t> ids) const;

  // Returns last_safe_cut() for this tokenizer's stages; 0 if they allow no cut.
  size_t last_safe_cut(std::string_view text) const;

 private:
  friend class Encoder;

  // A trie of the added tokens, those that are found before normalization or those found after it.
  class Finder {
   public:
    void add(std::string_view content, int32_t index);
    bool empty() const { return nodes_.size() == 1; }
    struct Found {
      size_t begin;
      size_t end;
      int32_t index;
    };
    // Returns the leftmost match, the longest of several there; index -1: no match.
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
  // Returns false if `text` is unchanged; see normalize().
  bool normalize_text(std::string_view text, std::string& normalized) const;
  void encode_piece(std::string_view piece, Bpe::Scratch& scratch) const;

  std::unique_ptr<Bpe> bpe_;
  std::unique_ptr<Unigram> unigram_;
  std::vector<std::string> texts_;  // without byte_level: the text that each token adds
  std::unique_ptr<const SentencePiece> sentencepiece_;
  int64_t vocab_size_ = bytes_vocabulary;
  Finder raw_tokens_;
  Finder normalized_tokens_;
  std::vector<const AddedToken*> added_by_id_;
  bool can_cut_ = true;
  std::string bytes_text_;  // for "bytes": all bytes in order
};

// Encodes texts with a tokenizer. Caches the ids of pieces. Not thread-safe.
class Encoder {
 public:
  // `end_token`: a token that ends documents. It counts as special, whatever kind of token it is. Throws as Regex does.
  explicit Encoder(std::shared_ptr<const Tokenizer> tokenizer, std::optional<int32_t> end_token = {});
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Returns the ids of a text, as Hugging Face's encode(text, add_special_tokens=False), tiktoken's encode(text,
  // allowed_special="all") or SentencePiece's Encode does. With `special_as_text`, special added tokens are ordinary
  // text. Valid until the next call. `text` is UTF-8; the well-known patterns treat each invalid byte as a symbol.
  // Throws Error(data) if a regular expression cannot be matched.
  std::span<const int32_t> encode(std::string_view text, bool special_as_text = false);
  // Returns how many special tokens' texts the last text contained, encoded as tokens or not. SentencePiece models and
  // "bytes" have none in texts, except an end token that is an ordinary piece or a symbol of the user.
  int64_t num_special() const;
  // Returns true if an ordinary piece of the last text is the end token, so that it cannot be encoded as text.
  bool has_end_piece() const;
  // Returns one of these special tokens' texts; empty if there is none.
  std::string_view special_in_text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
