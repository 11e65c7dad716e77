// Attention of ranks that share sequences and exchange keys and values. Notation: ops/ops.h.
#pragma once

#include <string_view>

#include "base/matrix.h"
#include "ops/attention_ops.h"
#include "ops/key_tiles.h"

namespace gptrain::inline ops {

// Attention of some of a sequence's queries over some of its keys, each a run of tokens (KeyTiles::of_part): `of` is
// the op of the sequence with batch 1, sequence_length queries, k and v with part.keys rows, o in f32. A query that
// sees none of these keys has o = 0 and lse = -infinity. Parts over all keys of a query are merged by MergeAttention.
// Dropout drops the pairs that it drops in the whole sequence. document_starts and sample_ids are those of the
// sequence. Sinks are given for one of the parts that have a query. REQUIRES: mask.pattern.one_run().
struct AttentionPartForward {
  static constexpr std::string_view name = "attention_part_forward";
  AttentionForward of;
  AttentionPart part;
};

// Gradients of a part: dq, dk and dv, f32, are its share of the sums over all parts. o, lse and d_o are those of whole
// attention. d_sinks, if given, is the whole gradient of the part's queries.
struct AttentionPartBackward {
  static constexpr std::string_view name = "attention_part_backward";
  AttentionBackward of;
  AttentionPart part;
};

// Adds the attention of other keys: l = log(e^lse + e^part_lse), o = o e^(lse - l) + part_o e^(part_lse - l), lse = l,
// for each query and head. Does not read part_o where part_lse is minus infinity. REQUIRES: o is finite.
struct MergeAttention {
  static constexpr std::string_view name = "merge_attention";
  Matrix part_o;    // [N, H D] f32
  Matrix part_lse;  // [H, N] f32
  Matrix o;         // like part_o, in and out
  Matrix lse;       // like part_lse, in and out
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_PART_OP(X) X(AttentionPartForward) X(AttentionPartBackward) X(MergeAttention)
