// Places of a rank's parameters, gradients and optimizer state in memory, by ZeRO stage (arXiv 1910.02054).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/enum_array.h"
#include "config/parallelism.h"
#include "model/model.h"
#include "model/spec/layout.h"
#include "model/spec/shard.h"
#include "model/spec/spec.h"
#include "ops/element_update.h"
#include "parallel/staged_units.h"
#include "parallel/state_columns.h"
#include "parallel/state_layout.h"
#include "parallel/unit_slots.h"

namespace gptrain::inline parallel {

// Division of parameters over the ranks that hold replicas of them, and their dtypes. Every unit is cut into equal
// pieces, one for each rank of its group (ReplicaGroup). With `zero` 1 a rank holds only its piece of the optimizer
// state, with 2 also of the gradients, with 3 also of the weights. `zero` is 0 if there is one data rank.
//
// Weights are in the compute dtype. With f32 they are updated directly; with bf16 and f16 there are f32 master weights,
// which are updated (arXiv 1710.03740). With `pure` only norms have masters: the bf16 weights themselves are updated,
// with stochastic rounding, so that small updates count on average (arXiv 2010.06192). This saves 4 bytes of 18 for
// each parameter. Two things stay in f32:
// - Norms. Their ops read f32 (see NormUse), and they are some ten thousandths of the parameters. Near 1, bf16 numbers
//   are 2^-7 or 2^-8 apart, and a random step of that size in a norm's weight moves a whole feature.
// - Gradients, as in the other precisions: the sum over micro-batches is rounded once, when it is used. If `gradients`
//   is bf16, the sum is stored in bf16 (see AccumulatedGradients). This saves 2 more bytes for each parameter, but
//   needs f32 gradients of a whole unit while they are computed.
struct Sharding {
  int64_t zero = 0;                         // ZeRO stage, 0 to 3
  Residency weights = Residency::resident;  // place of weights that the ZeRO stage does not cut
  bool separate_updated_weights = false;    // updates write weights in other memory than the ops read
  bool updates_delayed = false;             // and run beside the next step: they read gradients in other memory, too
  bool masters_away = false;                // master weights of some units are not in memory (StateLayout)
  bool gradients_away = false;              // sums of gradients lie beside optimizer state (StateLayout)
  int64_t landed_units = 3;                 // most units on disk whose state is in memory at a time (StateLayout)
  EnumArray<ReplicaGroup, ReplicaRank, num_replica_groups> replica_ranks = {};
  DType compute = DType::f32;    // dtype of weights
  DType reduce = DType::f32;     // dtype in which gradients are summed over replicas
  bool pure = false;             // compute is bf16, and only norms have masters
  bool codes_weights = false;    // weights travel in codes of 8 bits (coded_weights.h); `zero` is 3, compute bf16
  DType gradients = DType::f32;  // dtype of the gradients that the rank keeps: f32, or with `pure` bf16

  bool cuts_state() const { return gptrain::cuts_state(zero); }
  bool cuts_gradients() const { return gptrain::cuts_gradients(zero); }
  ParameterFlow flow() const {
    ParameterFlow flow = parameter_flow(zero, weights, separate_updated_weights);
    flow.updates_delayed = updates_delayed;
    return flow;
  }
  // Whether updates write f32 norms beside the weights that they write, from where gathers bring them.
  bool has_updated_norms() const { return separate_updated_weights && masters_away; }
  // Whether the rank's buffer of weights has its pieces only, and ops read weights that were gathered.
  bool gathers_weights() const { return flow().gathers_weights(); }
  // Whether the weights lie beside optimizer state that is away (StateLayout).
  bool weights_away() const { return flow().weights == Residency::away; }
  // Whether an update reads the weights that it writes.
  bool updates_weights() const { return compute == DType::f32 || pure; }
  const ReplicaRank& replica_rank(ReplicaGroup group) const { return replica_ranks[group]; }
  ReplicaCounts replica_counts() const;
  // Whether gradients are summed in a narrower dtype than f32, those of any unit or of units with a group.
  bool narrows_gradients() const { return narrows_gradients(ReplicaGroup::data); }
  bool narrows_gradients(ReplicaGroup group) const { return reduce != DType::f32 && replica_rank(group).size > 1; }
  // Whether a micro-batch's gradients of a unit have an f32 buffer of their own, not that of the sum that the rank
  // keeps.
  bool has_gradient_buckets() const { return cuts_gradients() || gradients != DType::f32 || gradients_away; }
  // Whether a bucket begins with the sum of earlier micro-batches, to which the ops add. Sums in bf16 have another
  // buffer.
  bool buckets_hold_sums() const { return gradients_away && !cuts_gradients() && gradients == DType::f32; }
  // Whether the weights of a unit are gathered in codes.
  bool codes_weights_of(const UnitRange& range) const { return codes_weights && range.pieces > 1; }
  bool has_master() const { return compute != DType::f32 && !pure; }
  // Whether each rank has all norms in f32 after its weights. Else the ops read them in the weights or the masters.
  bool has_f32_norms() const {
    return compute != DType::f32 && (cuts_state() || separate_updated_weights || masters_away || pure);
  }
};

// Bytes of each of a rank's parameter buffers.
struct ParameterBytes {
  int64_t weights = 0;    // compute dtype, then f32 norms if has_f32_norms()
  int64_t updated = 0;    // compute dtype, with `separate_updated_weights`; then f32 norms if has_updated_norms()
  int64_t gradients = 0;  // dtype Sharding::gradients; with `updates_delayed` those that updates read lie behind them
  int64_t master = 0;     // f32; 0 unless has_master()
  int64_t state = 0;      // the optimizer's columns, all at home
};
ParameterBytes parameter_bytes(const ParameterLayout& layout, const Sharding& sharding, const StateColumns& columns);

// Bytes of a unit's memory in buffers of a schedule, each a multiple of memory_alignment; 0 if the sharding needs none.
struct UnitBufferBytes {
  int64_t weights = 0;           // gathered weights
  int64_t whole_gradients = 0;   // gradients of a micro-batch
  int64_t narrow_gradients = 0;  // gradients in the narrower dtype in which they are summed
};
UnitBufferBytes unit_buffer_bytes(const UnitRange& range, const Sharding& sharding);
// Returns the bytes that a unit's gathered weights take in addition if they travel in codes, else 0.
int64_t code_bytes_behind(const UnitRange& range, const Sharding& sharding);

// Starts of the buffers. `updated`, `master` and `state` lie where updates of units at home run, the others on the
// device.
struct ParameterBuffers {
  std::byte* weights = nullptr;
  std::byte* updated = nullptr;  // weights that the update writes; null: `weights`
  std::byte* gradients = nullptr;
  std::byte* master = nullptr;
  std::byte* state = nullptr;
  std::byte* landing = nullptr;  // landing area and units on the host; null: behind the state at home
  // Memory of StagedUnits, from which updates read gradients, and where they change weights; null: in the memory of the
  // ops.
  std::byte* staged = nullptr;
};

// A range of a unit's elements that an update changes, with its addresses in all buffers but the optimizer's.
struct UpdateRange {
  int64_t first;         // elements from the unit's start
  int64_t elements;      // number of elements
  std::byte* gradients;  // dtype Sharding::gradients; with `updates_delayed` those of the step that the update ends
  float* master;         // master weights, or the weights themselves if they are f32; null with `pure`
  std::byte* weights;    // compute dtype, in ParameterBuffers::updated; null if it is f32
};

// Elements of one tensor that a rank holds: a box of the global tensor that is contiguous in memory.
struct StateSlice : Box {
  int64_t tensor = 0;  // index in the spec
  // The weights that are updated. `narrow_weight` is used with `pure` for tensors other than norms, else `weight`. The
  // other is null. Values of a unit that is away have addresses that only AwayState reads and writes.
  float* weight = nullptr;
  bf16* narrow_weight = nullptr;
  // By column of the optimizer; null if it has no values for the elements.
  std::vector<std::byte*> columns;
  // Errors of compressed gradients; null: none. A piece with errors has no weights and no columns.
  float* residual = nullptr;
  // The factor from which the next sum of the tensor's gradients begins, of this piece's own shape; null: none. A piece
  // with a factor has nothing else.
  float* factor = nullptr;
  // Gradients of the last step, summed, before clipping. Sharding::gradients says which is used. The other is null, and
  // both are if gradients are away.
  float* gradient = nullptr;
  bf16* narrow_gradient = nullptr;
  // Blocks of the tensor in columns with a value for each block; numbered as in TensorShard. All blocks that the rank
  // has come with one piece of the tensor. If the rank writes blocks but no elements, the piece has no elements.
  int64_t first_block = 0, num_blocks = 0;
  // Size of the tensor, for columns with a value for each row or column. These come with a piece of their own, which
  // has no elements; 0 in other pieces.
  int64_t rows = 0, cols = 0;

  int64_t column_bytes(const StateColumn& column) const;  // 0 if the column has no values here
};

// A rank's piece of a unit.
struct UnitPiece {
  int64_t first = 0;  // elements from the unit's start
  int64_t elements = 0;

  int64_t end() const { return first + elements; }
};

// Returns the map from elements of a box, counted from its element `first`, to elements of the tensor.
IndexMap index_map(const TensorSpec& tensor, const ShardBox& box, int64_t first);

struct NormPiece {
  int64_t first = 0;        // elements from the unit's start
  int64_t count = 0;        // number of elements
  float* master = nullptr;  // masters of these; with `pure` within the buffer of all f32 norms
};

// First of the addresses that stand for values whose unit is away (StateLayout). No memory has these addresses.
constexpr uintptr_t away_addresses = uintptr_t{0xF} << 60;

class ParameterStore {
 public:
  // Borrows the layout, the spec, the shards and the buffers. `columns` are the optimizer's; none if nothing is
  // trained. `state_places`: see StateLayout.
  ParameterStore(const ModelSpec& spec, const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                 const Sharding& sharding, const ParameterBuffers& buffers, StateColumns columns = {},
                 const std::vector<MemoryPlace>& state_places = {});

  const ModelSpec& spec() const { return spec_; }
  const std::vector<TensorShard>& shards() const { return shards_; }
  const Sharding& sharding() const { return sharding_; }
  const ParameterLayout& layout() const { return layout_; }
  int64_t num_parameter_units() const { return static_cast<int64_t>(layout_.units.size()); }

  // Returns the whole unit as its ops see it. `gathered` has its weights if these are gathered, and `whole_gradients`
  // its gradients if has_gradient_buckets(); otherwise they are not used. Both have UnitRange::elements elements.
  UnitParameters whole(int64_t unit, std::byte* gathered = nullptr, std::byte* whole_gradients = nullptr) const;
  // Returns this rank's piece of a unit's weights, in the compute dtype, as the update has written it. If weights are
  // away, it is the place into which they are read before they are gathered.
  std::byte* weights_piece(int64_t unit) const;
  // Places of values that pass between a device and updates on its host: of units that are away.
  const StagedUnits& staged_units() const { return staged_units_; }
  // Returns whether the rank updates any unit whose state is at home.
  bool updates_at_home() const;
  // Places of pieces of weights and of gradients that are away while the rank's thread uses them.
  const UnitSlots& weight_slots() const { return weight_slots_; }
  const UnitSlots& gradient_slots() const { return gradient_slots_; }
  // Returns the number of a unit's f32 norms that are stored separately from its weights; 0 unless has_f32_norms().
  int64_t f32_norm_elements(int64_t unit) const;
  // Returns this rank's part of a unit's norms.
  NormPiece norm_piece(int64_t unit) const;
  // Returns where updates write this rank's part of a unit's norms for the ops, with Sharding::masters_away.
  float* updated_norms(int64_t unit) const;
  // Returns zeros in host memory, as many as any unit has norms.
  const float* zeros() const { return zeros_.data(); }
  // Returns this rank's piece of the sum of a unit's gradients, as one row.
  Matrix gradients_piece(int64_t unit) const;
  int64_t piece_elements(int64_t unit) const { return range(unit).piece_elements(); }
  // Returns this rank's piece of a unit, and the piece of the rank with a number in the unit's group.
  UnitPiece piece(int64_t unit) const { return piece(unit, replica_rank(unit).rank); }
  UnitPiece piece(int64_t unit, int64_t rank) const { return {rank * piece_elements(unit), piece_elements(unit)}; }
  // Returns this rank's number among the ranks that hold replicas of a unit.
  const ReplicaRank& replica_rank(int64_t unit) const { return sharding_.replica_rank(range(unit).replicas); }
  // Returns the range that this rank updates: its piece, or with ZeRO 0 the whole unit.
  UpdateRange update_range(int64_t unit) const;
  const StateColumns& columns() const { return columns_; }
  const StateLayout& state_layout() const { return state_layout_; }
  // Returns the place of a unit that is away while it is landed (StateLayout).
  std::byte* landing(int64_t unit) const {
    const int64_t offset = state_layout_.landing_offset(unit);
    return buffers_.landing != nullptr ? buffers_.landing + (offset - state_layout_.home_bytes())
                                       : buffers_.state + offset;
  }
  std::byte* landing(int64_t unit, AwayPart part) const {
    return landing(unit) + state_layout_.part_offset(part, unit);
  }
  // Returns the start of a column's values for update_range(unit). A column may lack values for a unit's last tensors,
  // or have values for those alone (UnitEnd). Its storage then covers only that part of the range.
  std::byte* column(size_t column, int64_t unit) const;
  // Returns the start of a tensor's values in a column with a value for each row or column.
  std::byte* factored_column(size_t column, size_t tensor) const;

  // Returns the buffer that holds this rank's pieces of the summed gradients, as one row.
  Matrix summed_gradients() const;
  // Returns the start of this rank's piece of a unit in that buffer, in elements.
  int64_t offset_in_summed(int64_t unit) const;
  // Returns the summed gradients of update_range(unit), as one row. REQUIRES: they are not away.
  Matrix gradients_of_range(int64_t unit) const;

  // Returns all state that this rank updates. With `written_only`, only the part that this rank writes to a checkpoint:
  // each element is then in the state of exactly one rank of the world.
  std::vector<StateSlice> state(bool written_only) const;
  // Returns the bytes of a copy of state(true) in which every weight and column of a piece starts at a multiple of
  // memory_alignment; with `clones`, of the part of it that is not on disk. Does not need buffers.
  int64_t snapshot_bytes(bool clones) const;

 private:
  const UnitRange& range(int64_t unit) const { return layout_.units[unit]; }
  // Returns the start of this rank's piece of a unit, in elements, in a buffer of pieces only or of whole units.
  int64_t offset_of_piece(int64_t unit, bool pieces_only) const;
  // Returns the range of update_range().
  UnitPiece updated_piece(int64_t unit) const {
    return sharding_.cuts_state() ? piece(unit) : UnitPiece{0, range(unit).elements};
  }
  // Return whether a weight of a tensor, or a column's value of a unit, is on disk.
  bool is_weight_on_disk(size_t tensor) const;
  bool is_on_disk(const StateColumn& column, int64_t unit) const;
  std::vector<StagedParts> staged_parts() const;
  // Returns the weights that the update writes, from an element of the unit on.
  std::byte* updated_weights(int64_t unit, int64_t first) const;
  // Returns the address in StateSlice of a value that update_range() or column() give.
  template <typename T>
  T* saved_address(int64_t unit, T* value) const;
  bool is_narrow(size_t tensor) const;  // whether its bf16 weights are updated directly
  // Blocks of a tensor in update_range of its unit, or in this rank's piece of it: the first block's number in the
  // rank's part of the tensor, the number of blocks, and the first block's index in the columns' values for the unit.
  struct HeldBlocks {
    int64_t first, count, in_columns;
  };
  HeldBlocks held_blocks(size_t tensor, bool piece_only) const;
  // Returns the number of elements in update_range(unit) before the tensors with which the unit ends (UnitEnd).
  int64_t held_before_last(int64_t unit) const;
  // Calls body(tensor, offset, shape, at, blocks) for each contiguous box that the rank holds or writes. The box starts
  // `at` elements after the start of update_range. The tensor's blocks come with one of its boxes, or with an empty
  // box.
  template <typename Body>
  void for_each_box(bool written_only, const Body& body) const;
  // Calls body(tensor) for each matrix whose row and column values this rank holds, or with written_only writes.
  template <typename Body>
  void for_each_factored(bool written_only, const Body& body) const;

  const ModelSpec& spec_;
  const std::vector<TensorShard>& shards_;
  const ParameterLayout& layout_;
  Sharding sharding_;
  ParameterBuffers buffers_;
  StateColumns columns_;
  StateLayout state_layout_;
  UnitSlots weight_slots_, gradient_slots_;
  std::vector<int64_t> norm_offset_;  // by unit: elements of f32 norms before its own
  std::vector<float> zeros_;
  StagedUnits staged_units_;
};

}  // namespace gptrain::parallel
