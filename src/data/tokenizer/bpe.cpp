#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "data/tokenizer/unicode.h"
#include "data/tokenizer/unigram.h"

namespace gptrain::inline data {
namespace {

// Largest length for which scanning all pairs is faster than a priority queue.
constexpr size_t short_piece_bytes = 96;

uint64_t mix(uint64_t key) {
  key *= 0x9E3779B97F4A7C15U;
  return key ^ key >> 32;
}

}  // namespace

Bpe::Bpe(const std::vector<std::string>& tokens, const std::vector<Merge>& merges, bool ignore_merges) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() == 1) byte_ids_[static_cast<uint8_t>(tokens[id][0])] = static_cast<int32_t>(id);
  }
  const size_t slots = std::bit_ceil(std::max<size_t>(16, merges.size() * 2));
  mask_ = slots - 1;
  pairs_.assign(slots, missing_);
  filter_mask_ = slots * 8 - 1;
  filter_.resize(slots * 8 / 64);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    const uint64_t hash = mix(key);
    const uint64_t bit = hash & filter_mask_;
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
    uint64_t slot = hash & mask_;
    while (pairs_[slot].key != no_key && pairs_[slot].key != key) slot = (slot + 1) & mask_;
    pairs_[slot] = {key, static_cast<uint32_t>(rank), merges[rank].result};
  }
  if (!ignore_merges) return;
  texts_ = tokens;
  for (size_t id = 0; id < texts_.size(); ++id) {
    if (!texts_[id].empty()) whole_pieces_.emplace(texts_[id], static_cast<int32_t>(id));
  }
}

Bpe::Bpe(const std::vector<std::string>& tokens, const std::vector<Merge>& merges, bool ignore_merges,
         const CharacterParts& characters)
    : Bpe(tokens, merges, ignore_merges) {
  constexpr size_t most_bytes = std::string_view("<0x00>").size();
  characters_ = characters;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty() && tokens[id].size() <= most_bytes)
      character_ids_.emplace(tokens[id], static_cast<int32_t>(id));
  }
}

// As in Hugging Face tokenizers, an unknown character's id is put off until a known character, another unknown one that
// is not fused with it, or the end: tokens of bytes go before it.
void Bpe::put_characters(std::string_view piece, std::vector<int32_t>& ids) const {
  bool has_unknown = false;
  const auto put_unknown = [&] {
    if (std::exchange(has_unknown, false)) ids.push_back(*characters_->unknown);
  };
  while (!piece.empty()) {
    const std::string character(piece.substr(0, decode_utf8(piece).length));
    piece.remove_prefix(character.size());
    if (const auto known = character_ids_.find(character); known != character_ids_.end()) {
      put_unknown();
      ids.push_back(known->second);
      continue;
    }
    const auto bytes = characters_->byte_fallback ? byte_tokens(character_ids_, character) : std::vector<int32_t>();
    ids.insert(ids.end(), bytes.begin(), bytes.end());
    if (!bytes.empty()) continue;
    if (!characters_->fuse_unknown) put_unknown();
    has_unknown = characters_->unknown.has_value();
  }
  put_unknown();
}

const Bpe::Pair& Bpe::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const uint64_t hash = mix(key);
  const uint64_t bit = hash & filter_mask_;
  if ((filter_[bit / 64] >> bit % 64 & 1) == 0) return missing_;
  for (uint64_t slot = hash & mask_; pairs_[slot].key != no_key; slot = (slot + 1) & mask_) {
    if (pairs_[slot].key == key) return pairs_[slot];
  }
  return missing_;
}

void Bpe::encode(std::string_view piece, Scratch& scratch) const {
  scratch.ids.clear();
  if (!whole_pieces_.empty()) {
    if (const auto found = whole_pieces_.find(piece); found != whole_pieces_.end()) {
      scratch.ids.push_back(found->second);
      return;
    }
  }
  if (characters_) {
    put_characters(piece, scratch.ids);
  } else {
    for (const char byte : piece) scratch.ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  }
  if (scratch.ids.size() <= short_piece_bytes) {
    encode_short(scratch);
  } else {
    encode_long(scratch);
  }
}

// ranks[i] and results[i] belong to the pair of ids i and i + 1.
void Bpe::encode_short(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<uint32_t>& ranks = scratch.ranks;
  std::vector<int32_t>& results = scratch.results;
  ranks.resize(ids.size());
  results.resize(ids.size());
  const auto look_up = [&](size_t i) {
    const Pair& pair = find(ids[i], ids[i + 1]);
    ranks[i] = pair.rank;
    results[i] = pair.result;
  };
  for (size_t i = 0; i + 1 < ids.size(); ++i) look_up(i);
  for (size_t count = ids.size(); count > 1;) {
    const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(count - 1);
    const auto best = std::min_element(ranks.begin(), end);
    if (*best == no_rank) break;
    const auto at = static_cast<size_t>(best - ranks.begin());
    ids[at] = results[at];
    const auto remove_after = [&](auto& values, size_t size) {
      std::copy(values.begin() + static_cast<std::ptrdiff_t>(at) + 2,
                values.begin() + static_cast<std::ptrdiff_t>(size),
                values.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    };
    remove_after(ids, count);
    ids.resize(--count);
    if (at + 1 < count) {
      remove_after(ranks, count);
      remove_after(results, count);
      look_up(at);
    }
    if (at > 0) look_up(at - 1);
  }
}

void Bpe::encode_long(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  const auto size = static_cast<int32_t>(ids.size());
  std::vector<int32_t>& previous = scratch.previous;
  std::vector<int32_t>& next = scratch.next;
  auto& heap = scratch.heap;
  previous.resize(ids.size());
  next.resize(ids.size());
  heap.clear();
  for (int32_t i = 0; i < size; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto push = [&](int32_t at) {
    if (at < 0 || next[at] >= size) return;
    const Pair& pair = find(ids[at], ids[next[at]]);
    if (pair.rank == no_rank) return;
    heap.push_back({pair.rank, static_cast<uint32_t>(at), pair.result});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (int32_t i = 0; i + 1 < size; ++i) push(i);
  constexpr int32_t gone = -1;
  while (!heap.empty()) {
    const Scratch::Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    const auto at = static_cast<int32_t>(best.at);
    if (ids[at] == gone || next[at] >= size) continue;
    // The pair may have changed since it was queued.
    if (find(ids[at], ids[next[at]]).rank != best.rank) continue;
    const int32_t merged = next[at];
    ids[at] = best.result;
    ids[merged] = gone;
    next[at] = next[merged];
    if (next[at] < size) previous[next[at]] = at;
    push(previous[at]);
    push(at);
  }
  std::erase(ids, gone);
}

}  // namespace gptrain::data
