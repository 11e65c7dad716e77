#include "data/tokenizer/charsmap.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace gptrain::inline data {
namespace {

// Iterates over the fields of a protocol buffer.
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view message) : rest_(message) {}

  // Returns false at the end, and if the message is damaged.
  bool next(uint64_t& number, std::string_view& bytes) {
    constexpr uint64_t as_varint = 0, as_8_bytes = 1, as_bytes = 2, as_4_bytes = 5;
    uint64_t key = 0;
    if (!varint(key)) return false;
    number = key >> 3;
    uint64_t size = 0;
    switch (key & 7U) {
      case as_varint:
        bytes = {};
        return varint(size);
      case as_8_bytes:
        size = 8;
        break;
      case as_4_bytes:
        size = 4;
        break;
      case as_bytes:
        if (!varint(size)) return false;
        break;
      default:
        return false;
    }
    if (size > rest_.size()) return false;
    bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  size_t bytes_left() const { return rest_.size(); }

 private:
  bool varint(uint64_t& value) {
    value = 0;
    for (uint32_t shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  std::string_view rest_;
};

void for_each_field(std::string_view message, uint64_t wanted, const std::function<void(std::string_view)>& on_field) {
  ProtoFields fields(message);
  uint64_t number = 0;
  std::string_view bytes;
  while (fields.next(number, bytes)) {
    if (number == wanted) on_field(bytes);
  }
}

// A double array of Darts: unit `at` has its children at (at ^ offset) ^ byte.
class DoubleArray {
 public:
  explicit DoubleArray(std::string_view bytes) : units_(bytes.size() / sizeof(uint32_t)) {
    if (!units_.empty()) std::memcpy(units_.data(), bytes.data(), units_.size() * sizeof(uint32_t));
  }

  // Returns true if every path through the array stays inside it and ends in a value below `most`.
  bool is_sound(uint64_t most) const {
    if (units_.empty()) return false;
    std::vector<bool> is_known(units_.size());
    std::vector<uint32_t> open = {0};
    while (!open.empty()) {
      const uint32_t at = open.back();
      open.pop_back();
      const uint32_t base = at ^ offset(units_[at]);
      if ((base | 0xFFU) >= units_.size()) return false;
      if (has_leaf(units_[at]) && (units_[base] & 0x7FFFFFFFU) >= most) return false;
      for (uint32_t byte = 0; byte <= 0xFF; ++byte) {
        const uint32_t child = base ^ byte;
        if ((units_[child] & 0x800000FFU) != byte || is_known[child]) continue;
        is_known[child] = true;
        open.push_back(child);
      }
    }
    return true;
  }

 private:
  static bool has_leaf(uint32_t unit) { return (unit >> 8 & 1U) != 0; }
  static uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & 1U << 9) >> 6); }

  std::vector<uint32_t> units_;
};

// Checks a charsmap: the trie's size in 32 bits, the trie, and the texts into which the trie's values point.
bool is_sound_charsmap(std::string_view charsmap) {
  if (charsmap.empty()) return true;
  uint32_t trie_bytes = 0;
  if (charsmap.size() < sizeof trie_bytes) return false;
  std::memcpy(&trie_bytes, charsmap.data(), sizeof trie_bytes);
  charsmap.remove_prefix(sizeof trie_bytes);
  if (trie_bytes % sizeof(uint32_t) != 0 || trie_bytes >= charsmap.size()) return false;
  const std::string_view texts = charsmap.substr(trie_bytes);
  return texts.back() == '\0' && DoubleArray(charsmap.substr(0, trie_bytes)).is_sound(texts.size());
}

std::string varint_of(size_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

}  // namespace

std::string with_unused_piece(std::string_view model, int32_t id) {
  constexpr uint64_t pieces = 1;
  constexpr std::string_view pieces_key = "\x0A";
  constexpr std::string_view unused_type = "\x18\x05";  // overrides the type before it: the last of two counts
  ProtoFields fields(model);
  uint64_t number = 0;
  std::string_view piece;
  int32_t at = -1;
  size_t begin = 0;
  while (fields.next(number, piece)) {
    if (number == pieces && ++at == id) break;
    begin = model.size() - fields.bytes_left();
  }
  std::string changed(model.substr(0, begin));
  changed += pieces_key;
  changed += varint_of(piece.size() + unused_type.size());
  changed += piece;
  changed += unused_type;
  changed += model.substr(model.size() - fields.bytes_left());
  return changed;
}

std::string find_charsmap_fault(std::string_view model) {
  constexpr uint64_t normalizer_spec = 3, denormalizer_spec = 5, precompiled_charsmap = 2;
  std::string fault;
  for (const uint64_t spec : {normalizer_spec, denormalizer_spec}) {
    for_each_field(model, spec, [&](std::string_view message) {
      for_each_field(message, precompiled_charsmap, [&](std::string_view charsmap) {
        if (!is_sound_charsmap(charsmap)) fault = "the table of its normalization (precompiled_charsmap) is damaged";
      });
    });
  }
  return fault;
}

}  // namespace gptrain::data
