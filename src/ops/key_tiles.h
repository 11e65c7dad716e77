// The tiles of keys that a tile of queries sees, and back: the mask arithmetic of every attention kernel, on CPUs and
// GPUs. All of it follows from a few numbers, so that no table of tiles is stored.
//
// Keys lie in two orders. In the natural order, place i holds token i. The picked order holds the keys that a pattern
// picks out of the whole sequence, side by side, so that they fill whole tiles:
//   fixed              the columns of the head's set, in rising order
//   strided, columns   class by class, where a class holds the tokens of one remainder by `width`; its last place is
//                      empty if other classes have a token more (strided: only classes of several tokens)
// A query sees at most three runs of places: the first tokens (global), those up to its own (local), and a run of the
// picked order. No key is in two of them. Queries of `strided` and `columns` see one run of the picked order only if
// they lie in that order, too. So strided attention takes two passes over its queries: one in the picked order for its
// picked keys, one in the natural order for the others. All other patterns take one.
#pragma once

#include <cstdint>

#include "base/int128.h"
#include "ops/attention_mask.h"

namespace gptrain::inline ops {

constexpr int attention_tile = 64;

// Places [first, end); none if end <= first.
struct PlaceRange {
  int first = 0, end = 0;

  [[gnu::always_inline]] constexpr int size() const { return end > first ? end - first : 0; }
  [[gnu::always_inline]] constexpr bool contains(int place) const { return first <= place && place < end; }
  [[gnu::always_inline]] constexpr bool contains(const PlaceRange& other) const {
    return first <= other.first && other.end <= end;
  }
};

// Keys that one query sees.
struct SeenKeys {
  PlaceRange global, local;  // natural order
  PlaceRange picked;
};

// One tile of keys in one of the two orders.
struct KeyTile {
  int tile;
  bool picked;

  [[gnu::always_inline]] constexpr int first() const { return tile * attention_tile; }
};

// Tiles of keys that a tile of queries sees, in the order in which kernels take them.
struct KeyRuns {
  PlaceRange global, local, picked;

  [[gnu::always_inline]] constexpr int size() const { return global.size() + local.size() + picked.size(); }
  [[gnu::always_inline]] constexpr KeyTile operator[](int index) const {
    if (index < global.size()) return {global.first + index, false};
    index -= global.size();
    if (index < local.size()) return {local.first + index, false};
    return {picked.first + index - local.size(), true};
  }
  [[gnu::always_inline]] constexpr bool contains(const KeyTile& key) const {
    return key.picked ? picked.contains(key.tile) : global.contains(key.tile) || local.contains(key.tile);
  }
};

// Runs of a sequence's tokens: `keys` tokens from first_key on, and queries from first_query on.
struct AttentionPart {
  int64_t first_query = 0, first_key = 0;
  int64_t keys = 0;
};

// The mask of one head in one sequence. `several_runs` false: for patterns with AttentionPattern::one_run() only, in
// less code.
template <bool several_runs>
struct KeyTiles {
  int tokens = 0;                      // queries, and keys of a whole sequence
  int first_query = 0, first_key = 0;  // tokens of the first places: 0 but in a part
  int natural_count = 0;               // keys in the natural order
  bool causal = true;
  AttentionKind kind = AttentionKind::dense;
  int width = 0, columns = 0, global = 0;
  int first_column = 0;                      // place in a block of the first column of the head's set
  int class_places = 0;                      // places that each class of tokens takes in the picked order
  const int32_t* document_starts = nullptr;  // the sequence's (see AttentionMask), or null
  // The pass: the order of its queries, and the orders of its keys.
  bool picked_queries = false, natural_keys = true, picked_keys = false;

  // Tiles of head `head` in the sequence whose document starts are given.
  [[gnu::always_inline]] static constexpr KeyTiles of(const AttentionMask& mask, int64_t tokens, int64_t head,
                                                      const int32_t* starts) {
    KeyTiles tiles;
    tiles.tokens = tiles.natural_count = static_cast<int>(tokens);
    tiles.causal = mask.causal;
    tiles.document_starts = starts;
    const AttentionPattern& pattern = mask.pattern;
    // If the width is at least the whole sequence, all kinds except columns are dense.
    const bool short_of_all = pattern.width < tokens;
    const bool dense = pattern.kind == AttentionKind::dense || pattern.global >= tokens ||
                       (!short_of_all && pattern.kind != AttentionKind::columns);
    if (dense) return tiles;
    tiles.kind = pattern.kind;
    tiles.width = static_cast<int>(short_of_all ? pattern.width : tokens);
    if constexpr (several_runs) {
      tiles.global = static_cast<int>(pattern.global);
      tiles.columns = static_cast<int>(pattern.columns);
      tiles.class_places = (tiles.tokens + tiles.width - 1) / tiles.width;
      tiles.first_column = tiles.column_of_set(static_cast<int>(head % pattern.column_sets));
    }
    return tiles;
  }

  // Tiles of some queries and keys of a sequence whose document starts are given. In a part, some queries may see no
  // key, and some keys no query. REQUIRES: mask.pattern.one_run().
  [[gnu::always_inline]] static constexpr KeyTiles of_part(const AttentionMask& mask, int64_t queries,
                                                           const AttentionPart& part, const int32_t* starts) {
    KeyTiles tiles;
    tiles.tokens = static_cast<int>(queries);
    tiles.first_query = static_cast<int>(part.first_query);
    tiles.first_key = static_cast<int>(part.first_key);
    tiles.natural_count = static_cast<int>(part.keys);
    tiles.causal = mask.causal;
    tiles.document_starts = starts;
    tiles.kind = mask.pattern.kind;
    tiles.width = static_cast<int>(mask.pattern.width);
    return tiles;
  }

  // RETURNS the place in a block of the first column of a set.
  [[gnu::always_inline]] constexpr int column_of_set(int set) const { return width - columns * (set + 1); }

  [[gnu::always_inline]] constexpr int num_passes() const {
    return several_runs && kind == AttentionKind::strided ? 2 : 1;
  }
  [[gnu::always_inline]] constexpr KeyTiles pass(int index) const {
    KeyTiles tiles = *this;
    if constexpr (several_runs) {
      const bool picks = kind == AttentionKind::strided || kind == AttentionKind::columns;
      tiles.picked_queries = picks && index == 0;
      tiles.picked_keys = tiles.picked_queries || kind == AttentionKind::fixed;
      tiles.natural_keys = kind == AttentionKind::columns ? global > 0 : !tiles.picked_queries;
    }
    return tiles;
  }

  [[gnu::always_inline]] constexpr int num_picked() const {
    if (kind == AttentionKind::fixed) return columns_before(tokens);
    return num_classes() * class_places;
  }
  // RETURNS the token at a place of the picked order; `tokens` or more if the place is empty.
  [[gnu::always_inline]] constexpr int picked_token(int place) const {
    if (kind == AttentionKind::fixed) return place / columns * width + first_column + place % columns;
    return place / class_places + place % class_places * width;
  }
  // RETURNS whether a token is in the picked order. REQUIRES: strided.
  [[gnu::always_inline]] constexpr bool is_picked(int token) const {
    return token < tokens && token % width < num_classes();
  }
  [[gnu::always_inline]] constexpr int num_queries() const {
    return several_runs && picked_queries ? num_picked() : tokens;
  }
  [[gnu::always_inline]] constexpr int num_query_tiles() const {
    return (num_queries() + attention_tile - 1) / attention_tile;
  }
  // RETURNS the token of the query at a place, `tokens` or more if the place is empty.
  [[gnu::always_inline]] constexpr int query_token(int place) const {
    return several_runs && picked_queries ? picked_token(place) : first_query + place;
  }
  [[gnu::always_inline]] constexpr int num_keys(bool picked) const {
    return several_runs && picked ? num_picked() : natural_count;
  }
  // RETURNS the tiles of keys of an order that this pass may see.
  [[gnu::always_inline]] constexpr int num_key_tiles(bool picked) const {
    const int keys = several_runs && !picked && kind == AttentionKind::columns ? global : num_keys(picked);
    return (keys + attention_tile - 1) / attention_tile;
  }
  [[gnu::always_inline]] constexpr int key_token(int place, bool picked) const {
    return several_runs && picked ? picked_token(place) : first_key + place;
  }

  // RETURNS the keys of this pass that a token's query sees.
  [[gnu::always_inline]] constexpr SeenKeys seen(int query) const {
    const int start = document_start(query);
    const int pattern_first = first_local(query);
    const int first = pattern_first > start ? pattern_first : start;
    SeenKeys result;
    result.local = {first > first_key ? first - first_key : 0,
                    causal ? smaller_of(query + 1 - first_key, natural_count) : natural_count};
    result.global = {first, first};
    if constexpr (several_runs) {
      if (!natural_keys) result.local.end = first;
      if (natural_keys && start < global && start < first) result.global = {start, global < first ? global : first};
      if (picked_keys) result.picked = seen_picked(query, start > global ? start : global);
    }
    return result;
  }

  // RETURNS the keys that a tile of queries sees, as runs of tiles. Every tile of the runs has a key that one of
  // the queries sees, except with documents, and with global tokens if queries are picked.
  [[gnu::always_inline]] constexpr KeyRuns runs(int query_tile) const {
    const PlaceRange places = query_places(query_tile);
    if (places.size() == 0) return {};
    const SeenKeys front = seen(query_token(places.first)), back = seen(query_token(places.end - 1));
    KeyRuns result;
    if (natural_keys && kind != AttentionKind::columns) result.local = tiles_of({front.local.first, back.local.end});
    if constexpr (several_runs) {
      if (natural_keys) {
        result.global = tiles_of(global_keys(places, back.local.first));
        if (result.local.size() > 0 && result.global.end > result.local.first) result.local.first = result.global.end;
      }
      if (picked_keys) result.picked = tiles_of({front.picked.first, back.picked.end});
    }
    return result;
  }

  // RETURNS whether every query of a tile sees every key of another.
  [[gnu::always_inline]] constexpr bool whole(int query_tile, const KeyTile& key) const {
    const PlaceRange places = query_places(query_tile);
    if (places.size() == 0) return false;
    const SeenKeys front = seen(query_token(places.first)), back = seen(query_token(places.end - 1));
    const PlaceRange keys{key.first(), key.first() + attention_tile};
    if constexpr (several_runs) {
      if (key.picked) return seen_by_both(front.picked, back.picked, keys);
      if (picked_queries)
        return document_starts == nullptr && keys.end <= global && keys.end <= smallest_token(places) + 1;
      if (seen_by_both(front.global, back.global, keys)) return true;
    }
    return seen_by_both(front.local, back.local, keys);
  }

  // RETURNS a range of query tiles with all that see a tile of keys. REQUIRES: the pass has keys of that order.
  [[gnu::always_inline]] constexpr PlaceRange query_tiles(const KeyTile& key) const {
    const int first = key.first();
    const int all = num_query_tiles();
    const int last =
        (first + attention_tile < num_keys(key.picked) ? first + attention_tile : num_keys(key.picked)) - 1;
    if constexpr (several_runs) {
      if (key.picked && kind == AttentionKind::fixed) return {(first / columns + 1) * width / attention_tile, all};
      if (key.picked) return {key.tile, tiles_of({0, (last / class_places + 1) * class_places}).end};
      if (picked_queries) return {0, all};
      if (first < global) return {key.tile, all};
      if (kind == AttentionKind::fixed) return {key.tile, smaller_of(all, tiles_of({0, end_of_block(last)}).end)};
    }
    const int offset = first_key - first_query;
    const int from = causal && first + offset > 0 ? (first + offset) / attention_tile : 0;
    if (kind == AttentionKind::dense) return {from, all};
    const int last_query = last + offset + width - 1;
    return {from, last_query < 0 ? 0 : smaller_of(all, last_query / attention_tile + 1)};
  }

 private:
  [[gnu::always_inline]] static constexpr int smaller_of(int a, int b) { return a < b ? a : b; }
  [[gnu::always_inline]] static constexpr PlaceRange tiles_of(const PlaceRange& places) {
    if (places.size() == 0) return {};
    return {places.first / attention_tile, (places.end + attention_tile - 1) / attention_tile};
  }
  // Bounds rise from the first query of a tile to its last.
  [[gnu::always_inline]] static constexpr bool seen_by_both(const PlaceRange& front, const PlaceRange& back,
                                                            const PlaceRange& keys) {
    return back.first <= keys.first && keys.end <= front.end;
  }

  // A class of one token has no pair in strided attention.
  [[gnu::always_inline]] constexpr int num_classes() const {
    return kind == AttentionKind::strided ? smaller_of(width, tokens - width) : width;
  }
  [[gnu::always_inline]] constexpr int document_start(int query) const {
    return document_starts != nullptr ? document_starts[query] : 0;
  }
  [[gnu::always_inline]] constexpr int end_of_block(int token) const { return (token / width + 1) * width; }
  [[gnu::always_inline]] constexpr int columns_before(int token) const {
    const int in_block = token % width - first_column;
    return token / width * columns + (in_block < 0 ? 0 : smaller_of(in_block, columns));
  }

  [[gnu::always_inline]] constexpr int first_local(int query) const {
    if (kind == AttentionKind::dense) return 0;
    if constexpr (several_runs) {
      if (kind == AttentionKind::fixed) return query - query % width;
      if (kind == AttentionKind::columns) return query + 1;
    }
    return query >= width ? query - width + 1 : 0;
  }

  // RETURNS the picked keys that a query sees, from token `start` on.
  [[gnu::always_inline]] constexpr PlaceRange seen_picked(int query, int start) const {
    if (kind == AttentionKind::fixed) return {columns_before(start), query / width * columns};
    const int remainder = query % width, first = remainder * class_places;
    const int skipped = start > remainder ? (start - remainder + width - 1) / width : 0;
    return {first + smaller_of(skipped, class_places),
            first + query / width + (kind == AttentionKind::columns ? 1 : 0)};
  }

  // RETURNS the places of a tile of queries, but not its first or last place if that holds no token. Places that hold
  // no token are never side by side.
  [[gnu::always_inline]] constexpr PlaceRange query_places(int query_tile) const {
    PlaceRange places{query_tile * attention_tile, smaller_of((query_tile + 1) * attention_tile, num_queries())};
    if constexpr (several_runs) {
      if (picked_queries && picked_token(places.first) >= tokens) ++places.first;
      if (picked_queries && places.size() > 0 && picked_token(places.end - 1) >= tokens) --places.end;
    }
    return places;
  }

  // RETURN the smallest and largest token of picked queries: of the tile's first and last class, or of its second and
  // second to last.
  [[gnu::always_inline]] constexpr int smallest_token(const PlaceRange& places) const {
    const int first_class = places.first / class_places, last_class = (places.end - 1) / class_places;
    const int first = picked_token(places.first);
    return first_class < last_class ? smaller_of(first, first_class + 1) : first;
  }
  [[gnu::always_inline]] constexpr int largest_token(const PlaceRange& places) const {
    const int first_class = places.first / class_places, last_class = (places.end - 1) / class_places;
    const int last = picked_token(places.end - 1);
    if (first_class == last_class) return last;
    // The classes behind that of the sequence's last token have one token less.
    const int longest = (tokens - 1) % width;
    if (first_class <= longest && longest < last_class) return tokens - 1;
    int end_of_class = last_class - 1 + (class_places - 1) * width;
    if (end_of_class >= tokens) end_of_class -= width;
    return last > end_of_class ? last : end_of_class;
  }

  // RETURNS a range of tokens with all of the first `global` that a tile of queries sees apart from its local run.
  [[gnu::always_inline]] constexpr PlaceRange global_keys(const PlaceRange& places, int last_first_local) const {
    if (!picked_queries) return {document_start(places.first), smaller_of(global, last_first_local)};
    return {document_start(smallest_token(places)), smaller_of(global, largest_token(places) + 1)};
  }
};

// Goes through the places of the picked order without divisions.
class PickedPlace {
 public:
  [[gnu::always_inline]] constexpr PickedPlace(const KeyTiles<true>& tiles, int place)
      : run_(tiles.kind == AttentionKind::fixed ? tiles.columns : tiles.class_places),
        step_(tiles.kind == AttentionKind::fixed ? 1 : tiles.width),
        between_runs_(tiles.kind == AttentionKind::fixed ? tiles.width : 1),
        place_in_run_(place % run_),
        token_(tiles.picked_token(place)) {}

  // RETURNS KeyTiles::picked_token of the place.
  [[gnu::always_inline]] constexpr int token() const { return token_; }
  [[gnu::always_inline]] constexpr void advance() {
    token_ += step_;
    if (++place_in_run_ < run_) return;
    place_in_run_ = 0;
    token_ += between_runs_ - run_ * step_;
  }

 private:
  int run_, step_;    // places of a run (the columns of a block, or a class), and tokens from one to the next
  int between_runs_;  // tokens from the start of a run to that of the next
  int place_in_run_, token_;
};

// RETURNS the passes over the queries that a mask takes.
constexpr int attention_passes(const AttentionMask& mask, int64_t tokens) {
  return KeyTiles<true>::of(mask, tokens, 0, nullptr).num_passes();
}

// RETURNS whether a key may lie in two orders, so that its gradients are sums over both.
constexpr bool attention_sums_keys(const AttentionMask& mask, int64_t tokens) {
  const auto tiles = KeyTiles<true>::of(mask, tokens, 0, nullptr);
  return tiles.num_passes() > 1 || (tiles.pass(0).natural_keys && tiles.pass(0).picked_keys);
}

// RETURNS the number of tiles that attention of one sequence executes: of all heads, without documents.
int64_t executed_attention_tiles(const AttentionMask& mask, int64_t tokens, int64_t heads);
// RETURNS this number for a part of a sequence with `queries` queries.
int64_t executed_attention_tiles(const AttentionMask& mask, int64_t queries, const AttentionPart& part, int64_t heads);
// RETURNS twice the (query, key) pairs of a part that model FLOPs count for a head: those of all parts of a dense
// sequence add up to tokens^2 (AttentionPattern::twice_counted_pairs).
Flops twice_counted_pairs(const AttentionMask& mask, int64_t queries, const AttentionPart& part);

}  // namespace gptrain::ops
