// A cache of the ids of pieces.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "data/tokenizer/huge_pages.h"

namespace gptrain::inline data {

// A table of fixed size for pieces of 1 to 8 * words - 1 bytes, keyed by their text. A new piece replaces an older one.
// Not thread-safe.
template <size_t words>
class PieceCache {
 public:
  static constexpr size_t max_bytes = 8 * words - 1;
  using Key = std::array<uint64_t, words>;

  explicit PieceCache(size_t log2_entries) : shift_(64 - log2_entries), entries_(size_t{1} << log2_entries) {}

  // Returns the bytes, then zeros; the last byte is the length. `readable_bytes`: bytes that may be read from
  // piece.data() on.
  static Key key_of(std::string_view piece, size_t readable_bytes) {
    Key key{};
    if (readable_bytes >= 8 * words) {
      std::memcpy(key.data(), piece.data(), 8 * words);
      for (size_t i = 0; i < words; ++i) {
        const size_t bytes = piece.size() > 8 * i ? piece.size() - 8 * i : 0;
        if (bytes < 8) key[i] &= (uint64_t{1} << 8 * bytes) - 1;
      }
    } else {
      std::memcpy(key.data(), piece.data(), piece.size());
    }
    key[words - 1] |= uint64_t{piece.size()} << 56;
    return key;
  }

  // Announces a find(): the table is larger than the processor's caches.
  void prefetch(const Key& key) const { __builtin_prefetch(&entries_[slot_of(key)]); }

  // Writes the ids of a piece to `out` and returns their number; 0: not found. REQUIRES: `out` has room for the
  // ids of the piece, and at least for inline_ids; elements behind the piece's ids may be overwritten, too.
  size_t find(const Key& key, int32_t* out) const {
    const size_t slot = slot_of(key);
    for (const size_t way : {slot, slot ^ 1}) {
      const Entry& entry = entries_[way];
      if (differ(entry.key, key)) continue;
      if (entry.count <= inline_ids) {
        std::memcpy(out, entry.ids.data(), sizeof entry.ids);
      } else {
        std::memcpy(out, &more_[entry.ids[0]], entry.count * sizeof(int32_t));
      }
      return entry.count;
    }
    return 0;
  }

  // REQUIRES: `ids` is not empty, and the key is not in the table.
  void put(const Key& key, std::span<const int32_t> ids) {
    size_t slot = slot_of(key);
    if (entries_[slot].count != 0) {
      // Replaces the older of two entries. The memory of its long list is freed only with that of all others.
      entries_[slot ^ 1] = entries_[slot];
    }
    if (ids.size() > inline_ids && more_.size() + ids.size() > max_more) {
      more_.clear();
      entries_.assign(entries_.size(), {});
    }
    Entry& entry = entries_[slot];
    entry.key = key;
    entry.count = static_cast<uint32_t>(ids.size());
    if (ids.size() <= inline_ids) {
      std::copy(ids.begin(), ids.end(), entry.ids.begin());
    } else {
      entry.ids[0] = static_cast<int32_t>(more_.size());
      more_.insert(more_.end(), ids.begin(), ids.end());
    }
  }

  static constexpr size_t inline_ids = 3;

 private:
  static constexpr size_t max_more = size_t{1} << 20;
  struct Entry {
    Key key{};
    std::array<int32_t, inline_ids> ids{};
    uint32_t count = 0;  // 0: empty
  };

  // Comparing std::arrays would call memcmp().
  static bool differ(const Key& a, const Key& b) {
    uint64_t difference = 0;
    for (size_t i = 0; i < words; ++i) difference |= a[i] ^ b[i];
    return difference != 0;
  }

  size_t slot_of(const Key& key) const {
    uint64_t hash = 0;
    for (const uint64_t word : key) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 29;
    }
    return static_cast<size_t>(hash * 0xBF58476D1CE4E5B9U >> shift_);
  }

  size_t shift_;
  std::vector<Entry, HugePages<Entry>> entries_;
  std::vector<int32_t> more_;
};

}  // namespace gptrain::data
