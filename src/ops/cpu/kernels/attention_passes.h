// Attention by passes: blocks of picked queries of several heads, and a head's pass in the natural order. Included only
// by matrix_kernels.cpp.
//
// Picked tokens lie far apart, and a row of one head is short. So the rows of all heads of a block are read together,
// in the order of the tokens, and packed. Its results are stored past the caches.
#pragma once

#include "ops/cpu/kernels/attention_backward_kernels.h"
#include "ops/cpu/kernels/attention_forward_kernels.h"

namespace gptrain::inline ops {
namespace {

// RETURNS the classes of a block.
inline int num_classes(const KeyTiles<true>& tiles, const PlaceRange& block) {
  const int end = block.end * attention_tile;
  const int places = (end < tiles.num_picked() ? end : tiles.num_picked()) - block.first * attention_tile;
  return places / tiles.class_places;
}

// Calls f(place, token) for the places of a block, counted from its first: for the first place of every class, then the
// second of every class, and so on, so that tokens of calls in a row are neighbours. `token` is past the last one if
// the place is empty.
template <typename F>
void each_picked(const KeyTiles<true>& tiles, const PlaceRange& block, const F& f) {
  const int first_class = block.first * attention_tile / tiles.class_places, classes = num_classes(tiles, block);
  for (int i = 0; i < tiles.class_places; ++i) {
    for (int c = 0; c < classes; ++c) f(c * tiles.class_places + i, first_class + c + i * tiles.width);
  }
}

// An operand or result of one head, by token, and the packed tiles of a block; nullptr: it is read elsewhere.
struct PickedRows {
  void* rows;
  int64_t stride;
  Unit* packed;
};

// Several of them, in the order of memory.
struct PickedOperands {
  PickedRows at[5 * max_picked_heads];
  int count = 0;

  void add(const void* rows, int64_t stride, Unit* packed) { at[count++] = {const_cast<void*>(rows), stride, packed}; }
};

// Where the row of a place of a block lies in its packed tiles.
template <bool pairs>
int64_t packed_row(int place, const Packing<pairs>& packing) {
  return place / attention_tile * packing.tile + place % attention_tile * packing.row_units;
}

// Begins to read rows of a token. Into the second-level cache: in the first, rows so far apart displace each other.
template <typename T>
void fetch_rows(const PickedOperands& operands, int64_t token, int64_t head_size) {
  const int64_t bytes = head_size * static_cast<int64_t>(sizeof(T));
  for (int i = 0; i < operands.count; ++i) {
    const auto* const row = static_cast<const T*>(operands.at[i].rows) + token * operands.at[i].stride;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(reinterpret_cast<const std::byte*>(row) + at, 0, 2);
  }
}

// Packs rows of a block. Calls also(place, token), too.
template <typename T, bool pairs, typename F>
void pack_picked(const KeyTiles<true>& tiles, const PlaceRange& block, const Packing<pairs>& packing,
                 const PickedOperands& operands, const F& also) {
  constexpr int tokens_ahead = 8;
  const int classes = num_classes(tiles, block);
  const int64_t ahead = int64_t{tiles.width} * ((tokens_ahead + classes - 1) / classes);
  each_picked(tiles, block, [&](int place, int token) {
    if (token + ahead < tiles.tokens) fetch_rows<T>(operands, token + ahead, packing.head_size);
    const int64_t to = packed_row(place, packing);
    for (int i = 0; i < operands.count; ++i) {
      const PickedRows& rows = operands.at[i];
      if (rows.packed == nullptr) continue;
      if (token < tiles.tokens) {
        pack_row<pairs>(rows.packed + to, packing.row_units, static_cast<const T*>(rows.rows) + token * rows.stride,
                        packing.head_size);
      } else {
        std::memset(rows.packed + to, 0, packing.row_units * 4);
      }
    }
    also(place, token);
  });
  const int unfilled = block.end * attention_tile - tiles.num_picked();
  for (int i = 0; i < operands.count && unfilled > 0; ++i) {
    if (operands.at[i].packed == nullptr) continue;
    std::memset(operands.at[i].packed + packed_row(block.size() * attention_tile - unfilled, packing), 0,
                unfilled * packing.row_units * 4);
  }
}

template <typename T, bool pairs>
void picked_forward_of(const PickedHeads& heads, const PlaceRange& block, const AttentionForwardBuffers& buffers) {
  const Packing<pairs> packing(heads.at[0].head_size);
  const KeyTiles<true>& tiles = heads.at[0].tiles;
  const int64_t block_units = block.size() * packing.tile;
  PickedOperands operands;
  for (int i = 0; i < heads.count; ++i) operands.add(heads.at[i].q, heads.at[i].q_stride, buffers.q + i * block_units);
  for (const bool values : {false, true}) {
    for (int i = 0; i < heads.count; ++i) {
      if (!heads.begins_keys(i)) continue;
      const AttentionHead& head = heads.at[i];
      operands.add(values ? head.v : head.k, values ? head.v_stride : head.k_stride,
                   (values ? buffers.picked_v : buffers.picked_k) + heads.kv_place(i) * block_units);
    }
  }
  pack_picked<T>(tiles, block, packing, operands, [](int, int) {});
  for (int i = 0; i < heads.count; ++i) {
    const AttentionHead& head = heads.at[i];
    for (int first = block.first; first < block.end; first += max_query_tiles) {
      Unit* const q = buffers.q + i * block_units + (first - block.first) * packing.tile;
      const int64_t count = smaller(max_query_tiles, block.end - first);
      for (int64_t tile = 0; tile < count; ++tile)
        begin_rows(running_rows(buffers, tile, packing), buffers.carried, false, 0, 0, head.sink);
      const int64_t keys = heads.kv_place(i) * block_units;
      forward_group<T, pairs>(head, first, count,
                              {q, buffers.picked_k + keys, buffers.picked_v + keys, block.first, false}, buffers,
                              NothingAhead());
      for (int64_t tile = 0; tile < count; ++tile) {
        const ScoreTile at = query_tile(head, first + tile, {});
        const RunningRows rows = running_rows(buffers, tile, packing);
        if (buffers.carried.o != nullptr) {
          carry_rows(rows, at, buffers.carried);
        } else {
          finish_rows<true>(rows, at, static_cast<T*>(head.o));
        }
      }
    }
  }
  end_streams();
}

// The buffers of one head of a block.
template <bool pairs>
AttentionBackwardBuffers buffers_of(const PickedHeads& heads, int head, const PlaceRange& block,
                                    const Packing<pairs>& packing, const AttentionBackwardBuffers& all) {
  const int64_t units = block.size() * packing.tile, places = block.size() * tile_size;
  const int64_t keys = heads.kv_place(head) * units;
  AttentionBackwardBuffers buffers = all;
  buffers.query_tiles = block;
  buffers.kept_tiles = block.size();
  buffers.q += head * units;
  buffers.d_o += head * units;
  buffers.delta += head * places;
  buffers.lse += head * places;
  buffers.picked_k += keys;
  buffers.picked_v += keys;
  return buffers;
}

// Packs the operands of a block: keys and values, too, if the buffers do not hold them. The log-sum-exp of an empty
// place is infinite, which makes its probabilities zero.
template <typename T, bool pairs>
void prepare_picked(const PickedHeads& heads, const KeyTiles<true>& tiles, const PlaceRange& block, bool packs_keys,
                    const Packing<pairs>& packing, const AttentionBackwardBuffers& buffers) {
  AttentionBackwardBuffers of[max_picked_heads];
  PickedOperands operands;
  for (int i = 0; i < heads.count; ++i) {
    of[i] = buffers_of(heads, i, block, packing, buffers);
    operands.add(heads.at[i].q, heads.at[i].q_stride, of[i].q);
  }
  for (int i = 0; packs_keys && i < heads.count; ++i) {
    if (heads.begins_keys(i)) operands.add(heads.at[i].k, heads.at[i].k_stride, of[i].picked_k);
  }
  for (int i = 0; packs_keys && i < heads.count; ++i) {
    if (heads.begins_keys(i)) operands.add(heads.at[i].v, heads.at[i].v_stride, of[i].picked_v);
  }
  for (int i = 0; i < heads.count; ++i) {
    operands.add(heads.at[i].d_o, heads.at[i].d_o_stride, of[i].d_o);
    operands.add(heads.at[i].o, heads.at[i].o_stride, nullptr);
  }
  RowProducts<T> products(packing.head_size);
  pack_picked<T>(tiles, block, packing, operands, [&](int place, int token) {
    const bool empty = token >= tiles.tokens;
    for (int i = 0; i < heads.count; ++i) {
      const AttentionHead& head = heads.at[i];
      of[i].lse[place] = empty ? -minus_infinity : head.lse[token];
      if (empty) {
        of[i].delta[place] = 0;
      } else {
        products.add(of[i].delta + place, static_cast<const T*>(head.o) + token * head.o_stride,
                     static_cast<const T*>(head.d_o) + token * head.d_o_stride);
      }
    }
  });
  products.flush();
  for (int i = 0; i < heads.count; ++i) {
    for (int64_t tile = 0; tile < block.size(); ++tile) {
      pack_behind(of[i].q + tile * packing.tile, buffers.k_rows, packing);
      pack_behind(of[i].d_o + tile * packing.tile, buffers.k_rows, packing);
    }
  }
}

// Stores the dq of a block, or keeps it among the sums over passes.
template <typename T, bool pairs>
void finish_picked(const AttentionHead& head, const KeyTiles<true>& tiles, const Packing<pairs>& packing,
                   const AttentionBackwardBuffers& buffers) {
  const PlaceRange& block = buffers.query_tiles;
  if (buffers.dq_sums == nullptr) {
    for (int tile = block.first; tile < block.end; ++tile) {
      const int64_t place = int64_t{tile} * tile_size;
      stream_picked(rows_of<T>(head.dq, head.dq_stride), buffers.dq + kept_offset(tile, packing, buffers),
                    PlacedTokens(tiles, true, place, smaller(tile_size, tiles.num_picked() - place)), packing);
    }
    return;
  }
  each_picked(tiles, block, [&](int place, int token) {
    if (token >= tiles.tokens) return;
    stream_row(buffers.dq_sums + token * packing.width, buffers.dq + place * packing.width, packing.width, 1.0F);
  });
}

template <typename T, bool pairs>
void picked_backward_of(const PickedHeads& heads, const PlaceRange& block, const GroupSpan& span,
                        const AttentionBackwardBuffers& buffers) {
  const Packing<pairs> packing(heads.at[0].head_size);
  const KeyTiles<true> tiles = heads.at[0].tiles.pass(0);
  const bool sums = buffers.dk_sums != nullptr;
  prepare_picked<T>(heads, tiles, block, sums || span.first, packing, buffers);
  for (int i = 0; i < heads.count; ++i) {
    const AttentionHead& head = heads.at[i];
    const AttentionBackwardBuffers own = buffers_of(heads, i, block, packing, buffers);
    const GroupSpan group{span.first && heads.begins_keys(i),
                          span.last && (i + 1 == heads.count || heads.begins_keys(i + 1))};
    backward_pass<T, pairs>(head, tiles, group, own);
    finish_picked<T>(head, tiles, packing, own);
  }
  end_streams();
}

// Stores the dq of a tile of queries in the natural order, with that of an earlier pass.
template <typename T, bool pairs>
void finish_queries(const AttentionHead& head, int query_tile, const Packing<pairs>& packing,
                    const AttentionBackwardBuffers& buffers) {
  const int64_t query = int64_t{query_tile} * tile_size, rows = smaller(tile_size, head.tokens - query);
  float* const from = buffers.dq + kept_offset(query_tile, packing, buffers);
  for (int64_t i = 0; buffers.dq_sums != nullptr && i < rows * packing.width; ++i)
    from[i] += buffers.dq_sums[query * packing.width + i];
  const auto store = [&](auto* dq) {
    store_rows(dq + query * head.dq_stride, head.dq_stride, from, packing.width, rows, head.head_size, 1.0F);
  };
  head.is_part ? store(static_cast<float*>(head.dq)) : store(static_cast<T*>(head.dq));
}

// RETURNS the most query tiles that see a tile of keys, if each tile of queries sees one run of neighbours, whose
// bounds rise; else all.
inline int most_kept_tiles(const AttentionHead& head, const KeyTiles<true>& tiles) {
  const int all = tiles.num_query_tiles();
  if (head.is_part || !tiles.causal || tiles.picked_keys || tiles.global > 0) return all;
  int most = 1;
  for (int key = 0; key < tiles.num_key_tiles(false); ++key) {
    const int size = tiles.query_tiles({key, false}).size();
    most = size > most ? size : most;
  }
  return most < all ? most : all;
}

// RETURNS the sums of an earlier pass that the next tiles of keys and of queries add.
template <bool pairs>
LinesAhead sums_ahead(const AttentionHead& head, const Packing<pairs>& packing, int key_tile, int query_tile,
                      const AttentionBackwardBuffers& buffers) {
  LinesAhead ahead;
  const auto add = [&](const float* sums, int tile) {
    const int64_t first = int64_t{tile} * tile_size;
    ahead.add(sums + first * packing.width, smaller(tile_size, head.tokens - first) * packing.width * 4);
  };
  add(buffers.dq_sums, query_tile);
  add(buffers.dv_sums, key_tile);
  add(buffers.dk_sums, key_tile);
  return ahead;
}

// Computes the pass in the natural order. Queries are prepared before their first tile of keys. If few tiles of them
// see the same keys, their results are stored behind the last, so that buffers of a few tiles stay in the caches.
template <typename T, bool pairs>
void natural_backward(const AttentionHead& head, const KeyTiles<true>& tiles, const GroupSpan& span,
                      const AttentionBackwardBuffers& all) {
  const Packing<pairs> packing(head.head_size);
  AttentionBackwardBuffers buffers = all;
  buffers.query_tiles = {0, tiles.num_query_tiles()};
  buffers.kept_tiles = most_kept_tiles(head, tiles);
  buffers.picked_k = buffers.picked_v = nullptr;
  const int num_tiles = buffers.query_tiles.end;
  if (buffers.kept_tiles == num_tiles) {
    for (int tile = 0; tile < num_tiles; ++tile) prepare_queries<T>(head, tile, packing, buffers);
    backward_pass<T, pairs>(head, tiles, span, buffers);
    for (int tile = 0; tile < num_tiles; ++tile) finish_queries<T>(head, tile, packing, buffers);
    return;
  }
  PlaceRange kept;
  for (int key = 0; key < num_tiles; ++key) {
    const PlaceRange seen = tiles.query_tiles({key, false});
    for (; kept.first < seen.first; ++kept.first) finish_queries<T>(head, kept.first, packing, buffers);
    for (; kept.end < seen.end; ++kept.end) {
      prepare_queries<T>(head, kept.end, packing, buffers);
      if (adds_to_zero(head, buffers))
        std::memset(buffers.dq + kept_offset(kept.end, packing, buffers), 0, packing.tile * 4);
    }
    if (buffers.dq_sums != nullptr) {
      const LinesAhead ahead = sums_ahead(head, packing, key + 1, kept.first, buffers);
      backward_keys<T, pairs>(head, tiles, {key, false}, span, buffers, ahead);
    } else {
      backward_keys<T, pairs>(head, tiles, {key, false}, span, buffers, NothingAhead());
    }
  }
  for (; kept.first < num_tiles; ++kept.first) finish_queries<T>(head, kept.first, packing, buffers);
}

template <typename T, bool pairs>
void backward_head(const AttentionHead& head, const GroupSpan& span, const AttentionBackwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  const auto sum_bytes = static_cast<size_t>(head.tokens * packing.width * 4);
  const KeyTiles<true> last_pass = head.tiles.pass(head.tiles.num_passes() - 1);
  // No zeros are needed if the first pass writes the sums of all tokens.
  const bool begins_all = ends_sums(last_pass) && last_pass.is_picked(last_pass.width - 1);
  if (buffers.dk_sums != nullptr && span.first && !begins_all) {
    std::memset(buffers.dk_sums, 0, sum_bytes);
    std::memset(buffers.dv_sums, 0, sum_bytes);
  }
  for (int pass = 0; pass < head.tiles.num_passes(); ++pass) {
    const KeyTiles<true> tiles = head.tiles.pass(pass);
    if (!tiles.picked_queries) {
      natural_backward<T, pairs>(head, tiles, span, buffers);
      continue;
    }
    if (buffers.dq_sums != nullptr && !begins_all) std::memset(buffers.dq_sums, 0, sum_bytes);
    const int all = tiles.num_query_tiles(), step = buffers.block_tiles;
    for (int first = 0; first < all; first += step) {
      picked_backward_of<T, pairs>({{head}, 1}, {first, first + step < all ? first + step : all}, span, buffers);
    }
  }
  if (buffers.dk_sums == nullptr || !span.last || ends_sums(last_pass)) return;
  const auto store_sums = [&](void* to, int64_t stride, const float* from) {
    store_rows(static_cast<T*>(to), stride, from, packing.width, head.tokens, head.head_size, 1.0F);
  };
  store_sums(head.dk, head.dk_stride, buffers.dk_sums);
  store_sums(head.dv, head.dv_stride, buffers.dv_sums);
}

}  // namespace
}  // namespace gptrain::ops
