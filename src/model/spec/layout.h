// Position of each tensor in a rank's flat parameter buffers, and the ranks over which each range of gradients is
// summed. Weights, gradients, master weights and optimizer state share one layout, in elements.
#pragma once

#include <cstdint>
#include <vector>

#include "base/enum_array.h"
#include "model/spec/shard.h"

namespace gptrain::inline spec {

// Every tensor starts at a multiple of this many elements: 256 bytes in the narrowest dtype.
constexpr int64_t segment_multiple = 128;

// The tensors at the end of each unit, so that an optimizer can store some state columns for these alone, or for all
// others.
enum class UnitEnd : uint8_t {
  matrices,      // matrices of blocks
  all_matrices,  // matrices of blocks, embedding and head
  block_state,   // tensors with TensorSpec::has_block_state; every tensor starts at a multiple of state_block elements
};
bool comes_last(const TensorSpec& tensor, UnitEnd end);

// Every unit starts at a multiple of this many elements, both in buffers of whole units and in buffers of one rank's
// pieces, so that blocks of this size begin with the unit.
constexpr int64_t unit_multiple = 256;

struct Segment {
  int64_t offset;  // elements from the start of the whole buffer
  int64_t count;   // elements of the rank's shard, padded rows included
};

// Ranks over which gradients are summed.
enum class ReductionGroup : uint8_t {
  tensor,    // all ranks of the tensor axis; each has the gradients of its own rows or heads (see NormUse)
  kv_heads,  // tensor ranks with the same keys' and values' heads (see TensorShard::shared_kv_first)
  replicas,  // the unit's ReplicaGroup; each rank gets its piece of the sum
  tied,      // the first and the last stage, which both hold the token table of a tied head
};

// By ReplicaGroup: number of ranks of the group.
using ReplicaCounts = EnumArray<ReplicaGroup, int64_t, num_replica_groups>;

// Size of a ReplicaGroup, and this rank's number in it.
struct ReplicaRank {
  int64_t size = 1;
  int64_t rank = 0;
};

// Elements [first, first + count) of a unit, whose gradients are summed over the group.
struct Reduction {
  ReductionGroup group;
  int64_t first;
  int64_t count;
};

// Range of one unit. The range begins with the weights of norms, so that they can be stored separately in f32, and ends
// with the tensors of UnitEnd. A unit that the rank does not hold has no elements and no reductions.
struct UnitRange {
  int64_t offset;         // elements; the unit's tensors fill [offset, offset + elements)
  int64_t elements;       // a multiple of segment_multiple, or state_block, times `pieces`
  int64_t norm_elements;  // elements at the start that hold the norms and sinks, padding included
  int64_t before_last;    // elements before the tensors of UnitEnd; `elements` if it has none
  int64_t first_tensor;   // index in ModelSpec::tensors
  int64_t num_tensors;
  // Reductions in order of execution: ranges summed over tensor ranks, then the whole unit over its replicas, then,
  // after the last micro-batch, the token table that two stages hold.
  std::vector<Reduction> reductions;
  // Total rows and columns of all matrices in the unit, over all ranks; a tensor of several matrices counts its columns
  // for each.
  int64_t matrix_rows = 0, matrix_cols = 0;
  ReplicaGroup replicas = ReplicaGroup::data;
  int64_t pieces = 1;        // ranks of the group; the rank with number r in it has piece r
  int64_t piece_offset = 0;  // elements; start of the rank's piece in a buffer of its pieces only

  int64_t piece_elements() const { return elements / pieces; }
};

// ZeRO (arXiv 1910.02054) cuts every unit into equal pieces, one for each rank of its group.
struct ParameterLayout {
  std::vector<Segment> segments;  // one per tensor of the spec
  std::vector<UnitRange> units;   // one per unit, in order
  int64_t elements = 0;           // size of a buffer of whole units
  int64_t piece_elements = 0;     // size of a buffer of one rank's pieces
  UnitEnd end = UnitEnd::matrices;

  int64_t held_elements(bool in_pieces) const { return in_pieces ? piece_elements : elements; }
};

// RETURNS the layout of a rank. `replica_counts`: ranks of each group. sequence_parallel: each tensor rank has only
// some rows of the residual stream. `held`: for each unit, whether the rank holds it; empty: all. table_twice: two
// stages hold the token table.
ParameterLayout make_layout(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                            const ReplicaCounts& replica_counts, bool sequence_parallel = false,
                            const std::vector<bool>& held = {}, bool table_twice = false,
                            UnitEnd end = UnitEnd::matrices);

}  // namespace gptrain::spec
