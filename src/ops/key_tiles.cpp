#include "ops/key_tiles.h"

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

}  // namespace gptrain::ops
