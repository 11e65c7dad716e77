// Byte-pair encoding of one piece of text (Sennrich et al., arXiv 1508.07909, over bytes as in GPT-2).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/tokenizer/huge_pages.h"

namespace gptrain::inline data {

struct Merge {
  int32_t left;
  int32_t right;
  int32_t result;
};

// Returns a pair of neighbouring ids as one number.
constexpr uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Vocabularies of characters instead of bytes: treatment of characters that are no token.
struct CharacterParts {
  std::optional<int32_t> unknown;  // id for a character that is no token; nullopt: such characters are dropped
  bool fuse_unknown = false;       // consecutive unknown characters become one id
  bool byte_fallback = false;      // prefers the tokens <0x00> ... <0xFF> of its bytes, if all exist, to `unknown`
};

// Vocabulary and merges. Immutable; thread-safe.
class Bpe {
 public:
  // tokens[id]: the token's bytes; empty: an id unknown to the merges. Every single byte must be a token. `merges`:
  // earlier ones take precedence; of a pair listed twice, the later counts, as in Hugging Face tokenizers. With
  // ignore_merges a piece that is a token becomes that token, whatever the merges.
  Bpe(const std::vector<std::string>& tokens, const std::vector<Merge>& merges, bool ignore_merges);
  // The same with tokens of characters. A character need not be a token.
  Bpe(const std::vector<std::string>& tokens, const std::vector<Merge>& merges, bool ignore_merges,
      const CharacterParts& characters);

  // Memory reused by encode(); one per thread.
  struct Scratch {
    struct Candidate {
      uint32_t rank;
      uint32_t at;
      int32_t result;
    };
    std::vector<int32_t> ids;
    std::vector<uint32_t> ranks;
    std::vector<int32_t> results;
    std::vector<int32_t> previous;
    std::vector<int32_t> next;
    std::vector<Candidate> heap;
  };

  // Stores the ids of a piece (at least 1 byte) in scratch.ids: merges, among all adjacent pairs, always the earliest
  // in the list, and of several equal ones the leftmost.
  void encode(std::string_view piece, Scratch& scratch) const;

 private:
  struct Pair {
    uint64_t key;  // left << 32 | right; no_key: the slot is empty
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint64_t no_key = ~uint64_t{0};
  static constexpr uint32_t no_rank = ~uint32_t{0};

  const Pair& find(int32_t left, int32_t right) const;
  void put_characters(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_short(Scratch& scratch) const;
  void encode_long(Scratch& scratch) const;

  std::array<int32_t, 256> byte_ids_{};
  std::optional<CharacterParts> characters_;
  std::unordered_map<std::string, int32_t> character_ids_;
  std::vector<Pair, HugePages<Pair>> pairs_;
  uint64_t mask_ = 0;
  // One bit per hash of a pair: most queried pairs do not merge, and this filter is small enough for the cache.
  std::vector<uint64_t> filter_;
  uint64_t filter_mask_ = 0;
  Pair missing_{no_key, no_rank, 0};
  std::unordered_map<std::string_view, int32_t> whole_pieces_;  // keys point into texts_; empty without ignore_merges
  std::vector<std::string> texts_;
};

}  // namespace gptrain::data
