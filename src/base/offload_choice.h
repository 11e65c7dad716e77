// Value of the key offload_key: the blocks of a stage whose saved activations stay on the host until
// their backward pass.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gptrain::inline base {

constexpr std::string_view offload_key = "memory.offload_activations";

class OffloadChoice {
 public:
  constexpr OffloadChoice() = default;  // no block
  static constexpr OffloadChoice of_blocks(int64_t blocks) { return OffloadChoice(blocks); }
  static constexpr OffloadChoice of_word(size_t word) { return OffloadChoice(-static_cast<int64_t>(word)); }

  constexpr bool any() const { return value_ != 0; }
  constexpr bool is_number() const { return value_ >= 0; }
  // REQUIRES: is_number().
  constexpr int64_t blocks() const { return value_; }
  // Returns a number that no other choice has, for use in tables.
  constexpr int64_t code() const { return value_; }
  constexpr bool operator==(const OffloadChoice&) const = default;

 private:
  explicit constexpr OffloadChoice(int64_t value) : value_(value) {}

  int64_t value_ = 0;  // a number of blocks, or the negative index of a word
};

// Words that a config may have in place of a number, by index.
constexpr std::array<std::string_view, 4> offload_words = {"none", "hidden", "all", "optimal"};

namespace offload {
constexpr OffloadChoice none;
constexpr OffloadChoice hidden = OffloadChoice::of_word(1);  // as many blocks as can be copied while others compute
constexpr OffloadChoice all = OffloadChoice::of_word(2);
constexpr OffloadChoice optimal = OffloadChoice::of_word(3);  // chosen together with recomputation
constexpr OffloadChoice of_blocks(int64_t blocks) { return OffloadChoice::of_blocks(blocks); }
}  // namespace offload

// Returns the word of a choice, or its number of blocks.
std::string offload_name(OffloadChoice choice);
// Returns nullopt if `word` is not one of offload_words.
std::optional<OffloadChoice> parse_offload(std::string_view word);

}  // namespace gptrain::base
