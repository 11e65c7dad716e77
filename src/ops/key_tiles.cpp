#include "ops/key_tiles.h"

#include <algorithm>

namespace gptrain::inline ops {
namespace {

template <bool several_runs>
int64_t executed_tiles(const AttentionMask& mask, int64_t tokens, int64_t head) {
  const auto all = KeyTiles<several_runs>::of(mask, tokens, head, nullptr);
  int64_t count = 0;
  for (int i = 0; i < all.num_passes(); ++i) {
    const auto tiles = all.pass(i);
    for (int query = 0; query < tiles.num_query_tiles(); ++query) count += tiles.runs(query).size();
  }
  return count;
}

}  // namespace

int64_t executed_attention_tiles(const AttentionMask& mask, int64_t tokens, int64_t heads) {
  if (mask.pattern.one_run()) return heads * executed_tiles<false>(mask, tokens, 0);
  int64_t count = 0;
  for (int64_t set = 0; set < mask.pattern.column_sets; ++set) count += executed_tiles<true>(mask, tokens, set);
  return heads / mask.pattern.column_sets * count;
}

int64_t executed_attention_tiles(const AttentionMask& mask, int64_t queries, const AttentionPart& part, int64_t heads) {
  const auto tiles = KeyTiles<false>::of_part(mask, queries, part, nullptr);
  int64_t count = 0;
  for (int query = 0; query < tiles.num_query_tiles(); ++query) count += tiles.runs(query).size();
  return heads * count;
}

// A query and a key of one token count as half a pair, so that causal attention has tokens^2 / 2 pairs.
Flops twice_counted_pairs(const AttentionMask& mask, int64_t queries, const AttentionPart& part) {
  const auto tiles = KeyTiles<false>::of_part(mask, queries, part, nullptr);
  Flops twice = 0;
  for (int place = 0; place < tiles.num_queries(); ++place) {
    const int query = tiles.query_token(place);
    twice += 2 * wide(tiles.seen(query).local.size());
    const int64_t own = query - part.first_key;
    if (mask.causal && mask.pattern.kind == AttentionKind::dense && own >= 0 && own < part.keys) twice -= 1;
  }
  return twice;
}

}  // namespace gptrain::ops
