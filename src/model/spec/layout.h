// Where each tensor lies in a rank's flat parameter buffers, and which ranges of gradients are summed over which ranks.
// Weights, gradients, master weights and optimizer state share one layout, in elements.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec/shard.h"

namespace gptrain {

// Every tensor starts at a multiple of this many elements: 256 bytes in the narrowest dtype.
constexpr int64_t segment_multiple = 128;

// What a unit ends with, so that some of an optimizer's state can be kept for that alone, or for the rest.
enum class UnitEnd : uint8_t {
  matrices,      // of blocks
  all_matrices,  // those of embedding and head, too
  block_state,   // tensors with TensorSpec::has_block_state; every tensor starts at a multiple of state_block elements
};
bool comes_last(const TensorSpec& tensor, UnitEnd end);

// Every unit starts at a multiple of this many elements, in buffers of whole units and of one rank's pieces alike, so
// that blocks of so many elements begin with it.
constexpr int64_t unit_multiple = 256;

struct Segment {
  int64_t offset;  // elements from the start of the whole buffer
  int64_t count;   // elements of the rank's shard, padded rows included
};

// Ranks over which gradients are summed.
enum class ReductionGroup : uint8_t {
  tensor,    // share each layer: each has the gradients of its own rows or heads (see NormUse)
  kv_heads,  // hold the same keys' and values' heads (see TensorShard::replicas_first)
  data,      // see other samples; cut the sum into ParameterLayout::pieces
  tied,      // the first and the last stage, which both hold the table of a tied head
};

// Elements [first, first + count) of a unit, whose gradients are a sum over the group.
struct Reduction {
  ReductionGroup group;
  int64_t first;
  int64_t count;
};

// A unit begins with the weights of its norms, so that they can be kept in f32 apart from the rest. What `UnitEnd` says
// comes last. A unit of which the rank holds nothing has no elements and no reductions.
struct UnitRange {
  int64_t offset;         // elements; the unit's tensors fill [offset, offset + elements)
  int64_t elements;       // a multiple of segment_multiple, or state_block, times `pieces`
  int64_t norm_elements;  // of which the first hold the norms, padding included
  int64_t before_last;    // of which the first hold what does not come last: all, where nothing does
  int64_t first_tensor;   // index in ModelSpec::tensors
  int64_t num_tensors;
  // In the order in which they are played: parts of the unit that are sums over tensor ranks, then, over the data axis,
  // all of it, and at last, when every micro-batch is in, the table that two stages hold.
  std::vector<Reduction> reductions;
  // Of all matrices in the unit over all ranks; a tensor of several matrices has columns for each.
  int64_t matrix_rows = 0, matrix_cols = 0;
};

// ZeRO (arXiv 1910.02054) cuts every unit into `pieces` equal pieces, one per data-parallel rank: rank d has piece d of
// each. A buffer of one rank's pieces only has elements / pieces, unit u's at units[u].offset / pieces.
struct ParameterLayout {
  std::vector<Segment> segments;  // one per tensor of the spec
  std::vector<UnitRange> units;   // one per unit, in order
  int64_t elements = 0;           // of the whole buffer
  int64_t pieces = 1;
  UnitEnd end = UnitEnd::matrices;

  int64_t piece_elements(const UnitRange& unit) const { return unit.elements / pieces; }
};

// sequence_parallel: ranks of the tensor axis have rows of the residual stream of their own. `held`: by unit, whether the
// rank holds it; empty: it holds all. table_twice: two stages hold the token table.
ParameterLayout make_layout(const ModelSpec& spec, const std::vector<TensorShard>& shards, int64_t pieces,
                            bool sequence_parallel = false, const std::vector<bool>& held = {},
                            bool table_twice = false, UnitEnd end = UnitEnd::matrices);

}  // namespace gptrain
