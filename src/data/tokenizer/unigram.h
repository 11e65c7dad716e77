// Unigram language models of Hugging Face tokenizers (Kudo, arXiv 1804.10959): of all ways to part a piece in tokens,
// the likeliest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gptrain {

struct UnigramParts {
  std::vector<double> scores;      // of each token, a logarithm; empty: the model is another
  std::optional<int32_t> unknown;  // of what no token begins
  bool byte_fallback = false;      // what is unknown is its bytes <0x00> .. <0xFF>
};

// Immutable; safe from several threads.
class Unigram {
 public:
  // tokens[id] is a token's text.
  Unigram(const std::vector<std::string>& tokens, UnigramParts parts);

  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  UnigramParts parts_;
  double unknown_score_ = 0;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<uint64_t, uint32_t> children_;  // of a node of the trie by its byte: node << 8 | byte
  std::vector<int32_t> id_at_;                       // of the token that ends in a node; -1 for none
};

// The ids of a character's bytes as <0xNN>; empty where one of them is no token.
std::vector<int32_t> byte_tokens(const std::unordered_map<std::string, int32_t>& ids, std::string_view character);

}  // namespace gptrain
