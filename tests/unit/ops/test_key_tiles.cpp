#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "catch.h"
#include "ops/footprint.h"
#include "ops/key_tiles.h"
#include "ops/plan/plan_backend.h"

namespace gptrain {
namespace {

// Tiles by (pass, query tile, order of keys, key tile), as pairs of booleans and numbers.
struct Visit {
  int pass, query_tile;
  bool picked;
  int key_tile;

  auto operator<=>(const Visit&) const = default;
};

struct Case {
  AttentionMask mask;
  int64_t tokens, head;
  std::vector<int32_t> starts;
};

bool attends(const Case& c, int query, int key) {
  if (!c.mask.causal) return true;
  return c.mask.pattern.sees(c.head, query, key) && (c.starts.empty() || key >= c.starts[static_cast<size_t>(query)]);
}

bool is_in(const SeenKeys& seen, bool picked, int place) {
  return picked ? seen.picked.contains(place) : seen.global.contains(place) || seen.local.contains(place);
}

// Compares a mask's intervals, runs, whole tiles and the ranges of query tiles with the pattern's definition.
template <bool several_runs>
void check(const Case& c) {
  const auto all = KeyTiles<several_runs>::of(c.mask, c.tokens, c.head, c.starts.empty() ? nullptr : c.starts.data());
  std::vector<int> times(static_cast<size_t>(c.tokens * c.tokens));  // visits of each pair
  bool sound = true, exact = true;
  for (int i = 0; i < all.num_passes(); ++i) {
    const auto tiles = all.pass(i);
    std::set<Visit> needed, partial;  // tiles with a pair, and with an element that is none
    for (int place = 0; place < tiles.num_queries(); ++place) {
      const int query = tiles.query_token(place);
      if (query >= c.tokens) continue;
      const SeenKeys seen = tiles.seen(query);
      for (const bool picked : {false, true}) {
        if (!(picked ? tiles.picked_keys : tiles.natural_keys)) continue;
        for (int at = 0; at < tiles.num_key_tiles(picked) * attention_tile; ++at) {
          const Visit visit{
              .pass = i, .query_tile = place / attention_tile, .picked = picked, .key_tile = at / attention_tile};
          if (at >= tiles.num_keys(picked) || !is_in(seen, picked, at)) {
            partial.insert(visit);
            continue;
          }
          const int key = tiles.key_token(at, picked);
          sound = sound && key < c.tokens && attends(c, query, key);
          if (key < c.tokens) ++times[static_cast<size_t>(query * c.tokens + key)];
          needed.insert(visit);
        }
      }
    }
    std::set<Visit> visited, from_keys;
    for (int tile = 0; tile < tiles.num_query_tiles(); ++tile) {
      const KeyRuns runs = tiles.runs(tile);
      for (int n = 0; n < runs.size(); ++n) {
        const KeyTile key = runs[n];
        const Visit visit{.pass = i, .query_tile = tile, .picked = key.picked, .key_tile = key.tile};
        sound = sound && visited.insert(visit).second && runs.contains(key);
        if (tiles.whole(tile, key)) sound = sound && !partial.contains(visit);
      }
    }
    for (const bool picked : {false, true}) {
      if (!(picked ? tiles.picked_keys : tiles.natural_keys)) continue;
      for (int key = 0; key < tiles.num_key_tiles(picked); ++key) {
        const PlaceRange range = tiles.query_tiles({key, picked});
        for (int tile = range.first; tile < range.end; ++tile) {
          if (tiles.runs(tile).contains({key, picked})) from_keys.insert({i, tile, picked, key});
        }
      }
    }
    sound = sound && std::includes(visited.begin(), visited.end(), needed.begin(), needed.end());
    const bool to_the_tile = c.starts.empty() && (!tiles.picked_queries || tiles.global == 0);
    exact = exact && (!to_the_tile || visited == needed);
    sound = sound && visited == from_keys;
  }
  CHECK(sound);
  CHECK(exact);
  bool once = true;
  for (int query = 0; query < c.tokens; ++query)
    for (int key = 0; key < c.tokens; ++key)
      once = once && times[static_cast<size_t>(query * c.tokens + key)] == (attends(c, query, key) ? 1 : 0);
  CHECK(once);
}

TEST_CASE("key tiles: every pair once, no tile without a pair, in 300 random masks") {
  std::mt19937 random(11);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint32_t>(end)); };
  for (int i = 0; i < 300; ++i) {
    Case c{.mask = {}, .tokens = 1 + below(i % 3 == 0 ? 420 : 140), .head = below(6), .starts = {}};
    AttentionPattern& pattern = c.mask.pattern;
    pattern.kind = static_cast<AttentionKind>(i % 5);
    if (pattern.kind != AttentionKind::dense) pattern.width = 1 + below(i % 2 == 0 ? 12 : 200);
    if (pattern.kind == AttentionKind::fixed) {
      pattern.columns = 1 + below(pattern.width);
      pattern.column_sets = 1 + below(std::min<int64_t>(pattern.width / pattern.columns, 3));
    }
    if (below(3) == 0) pattern.global = 1 + below(150);
    if (below(3) == 0) {
      for (int32_t token = 0, start = 0; token < c.tokens; ++token) {
        if (below(40) == 0) start = token;
        c.starts.push_back(start);
      }
    }
    INFO(attention_pattern_word(pattern) << " T=" << c.tokens << " head " << c.head << " case " << i
                                         << (c.starts.empty() ? "" : " documents"));
    check<true>(c);
    if (pattern.one_run()) check<false>(c);
  }
  check<false>({.mask = {.causal = false}, .tokens = 130, .head = 0, .starts = {}});
  // The last token of the first tile's queries is neither in its last class nor in the one before.
  check<true>({.mask = {.pattern = {.kind = AttentionKind::columns, .width = 178, .global = 147}},
               .tokens = 184,
               .head = 0,
               .starts = {}});
}

TEST_CASE("key tiles: the tiles of 200 random parts hold the pairs of their queries and keys") {
  std::mt19937 random(12);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint32_t>(end)); };
  for (int i = 0; i < 200; ++i) {
    const int64_t tokens = 2 + below(300);
    const AttentionMask mask{.pattern = window_pattern(i % 2 == 0 ? 0 : 1 + below(tokens))};
    std::vector<int32_t> starts;
    for (int32_t token = 0, start = 0; i % 3 == 0 && token < tokens; ++token) {
      if (below(40) == 0) start = token;
      starts.push_back(start);
    }
    AttentionPart part{.first_query = below(tokens), .first_key = below(tokens)};
    part.keys = 1 + below(tokens - part.first_key);
    const int64_t queries = 1 + below(tokens - part.first_query);
    const auto tiles = KeyTiles<false>::of_part(mask, queries, part, starts.empty() ? nullptr : starts.data());
    bool exact = true, in_runs = true, from_keys = true, whole = true;
    for (int place = 0; place < queries; ++place) {
      const int query = tiles.query_token(place), tile = place / attention_tile;
      const KeyRuns runs = tiles.runs(tile);
      for (int at = 0; at < part.keys; ++at) {
        const int key = tiles.key_token(at, false);
        const KeyTile key_tile{at / attention_tile, false};
        const bool attends =
            mask.pattern.sees(0, query, key) && (starts.empty() || key >= starts[static_cast<size_t>(query)]);
        exact = exact && tiles.seen(query).local.contains(at) == attends;
        in_runs = in_runs && (!attends || runs.contains(key_tile));
        from_keys = from_keys && (!attends || tiles.query_tiles(key_tile).contains(tile));
        whole = whole && (attends || !tiles.whole(tile, key_tile));
      }
    }
    INFO("T=" << tokens << " window " << mask.window() << " queries " << part.first_query << " + " << queries
              << " keys " << part.first_key << " + " << part.keys);
    CHECK((exact && in_runs && from_keys && whole));
  }
}

TEST_CASE("key tiles: the pairs of all parts of a sequence are those of the sequence") {
  for (const int64_t window : {0, 30}) {
    const AttentionMask mask{.pattern = window_pattern(window)};
    Flops twice = 0;
    for (const int64_t query : {0, 37, 100})
      for (const int64_t key : {0, 50})
        twice += twice_counted_pairs(mask, query == 0 ? 37 : query == 37 ? 63 : 20, {query, key, key == 0 ? 50 : 70});
    CHECK(twice == mask.pattern.twice_counted_pairs(120, 1));
  }
}

TEST_CASE("key tiles: executed tiles of the published shapes are near the pairs") {
  const auto executed_over_pairs = [](const char* word, int64_t tokens) {
    const AttentionMask mask{.pattern = parse_attention_pattern(word).value_or(AttentionPattern{})};
    const int64_t heads = mask.pattern.column_sets;
    return static_cast<double>(executed_attention_tiles(mask, tokens, heads) * attention_tile * attention_tile) /
           static_cast<double>(mask.pattern.pairs(tokens, heads));
  };
  CHECK(executed_over_pairs("fixed:128,16", 16384) <= 1.15);
  CHECK(executed_over_pairs("fixed:128,16/4", 16384) <= 1.15);
  CHECK(executed_over_pairs("columns:128", 16384) <= 1.55);
  CHECK(executed_over_pairs("columns:128", 65536) <= 1.2);
  CHECK(executed_over_pairs("band:256", 16384) <= 1.3);
}

TEST_CASE("key tiles: a footprint counts the pairs of its pattern, and the tiles that run") {
  AttentionForward op{};
  op.batch = 3;
  op.sequence_length = 300;
  op.num_heads = 4;
  op.num_kv_heads = 2;
  op.head_size = 16;
  op.mask.pattern = parse_attention_pattern("fixed:40,5/2+global:7").value_or(AttentionPattern{});
  int64_t pairs = 0;
  for (int64_t head = 0; head < 4; ++head)
    for (int64_t query = 0; query < 300; ++query)
      for (int64_t key = 0; key <= query; ++key) pairs += op.mask.pattern.sees(head, query, key) ? 1 : 0;
  const Footprint forward = footprint(op, Target{});
  CHECK(forward.model_flops == static_cast<Flops>(4 * 16 * 3 * pairs));
  CHECK(forward.executed_flops ==
        static_cast<Flops>(4 * 16 * 3 * attention_tile * attention_tile * executed_attention_tiles(op.mask, 300, 4)));
  CHECK(shape_text(op).ends_with(" fixed:40,5/2+global:7"));
}

TEST_CASE("a plan warns of patterns whose keys fill few whole tiles") {
  AttentionForward op{};
  op.batch = 1;
  op.num_heads = op.num_kv_heads = 1;
  op.head_size = 64;
  const auto warnings = [&](const char* pattern, int64_t tokens) {
    op.mask.pattern = parse_attention_pattern(pattern).value();
    op.sequence_length = tokens;
    PlanBackend backend{Target{}, nullptr};
    backend.run(op);
    return backend.take_warnings();
  };
  CHECK(warnings("columns:100", 2000).starts_with("attention columns:100 over 2000 tokens executes "));
  CHECK(warnings("fixed:128,16", 16384) == "");
  CHECK(warnings("band:8", 512) == "");
}

}  // namespace
}  // namespace gptrain
