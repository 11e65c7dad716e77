// Unigram language models of Hugging Face tokenizers (Kudo, arXiv 1804.10959): encodes a piece with the likeliest
// sequence of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gptrain::inline data {

struct UnigramParts {
  std::vector<double> scores;      // log-probability by id; empty: not a unigram model
  std::optional<int32_t> unknown;  // id for text without a token; nullopt: such text is dropped
  bool byte_fallback = false;      // encodes such text as tokens <0x00> ... <0xFF> of its bytes, if all of them exist
};

// Immutable; thread-safe.
class Unigram {
 public:
  // tokens[id] is a token's text.
  Unigram(const std::vector<std::string>& tokens, UnigramParts parts);

  // Appends the ids of a piece of a text, which is UTF-8, to `ids`.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  UnigramParts parts_;
  double unknown_score_ = 0;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<uint64_t, uint32_t> children_;  // trie: child node by (node << 8 | byte)
  std::vector<int32_t> id_at_;                       // by node: id of the token that ends there; -1: none
};

// Returns the ids of a character's bytes as tokens <0xNN>; empty if one of them is no token.
std::vector<int32_t> byte_tokens(const std::unordered_map<std::string, int32_t>& ids, std::string_view character);

}  // namespace gptrain::data
