// Where a rank's parameters, gradients and optimizer state lie, by ZeRO stage (arXiv 1910.02054).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "model/spec/layout.h"
#include "model/spec/shard.h"
#include "model/model.h"
#include "ops/element_update.h"
#include "parallel/state_columns.h"

namespace gptrain {

// How parameters are shared by the ranks of the data axis. Every unit is cut into `data_size` equal pieces; `zero` says
// of what a rank holds its piece only: 1 optimizer state, 2 also gradients, 3 also weights. 0 where data_size is 1.
//
// Weights are in the compute dtype. With f32 they are the masters; with bf16 and f16 there are f32 masters beside them,
// which updates go to (arXiv 1710.03740). With `pure` there are none but of the norms: updates go to the bf16 weights
// themselves and are rounded stochastically, so that the small ones count on the average (arXiv 2010.06192). That is 4
// bytes less for each parameter, of 18. What is not narrowed, and why:
// - Norms, whose ops read f32 (see NormUse), are some ten thousandths of the parameters. Near 1, bf16 numbers are
//   2^-7 or 2^-8 apart, and a random step of that size in a norm's weight moves a whole feature.
// - Gradients are f32, as in the other precisions: the sum over micro-batches is rounded once, when it is used. With
//   `gradients` bf16 that is narrowed, too (see KeptGradients): 2 bytes less, and a whole unit's in f32 while it is made.
struct Sharding {
  int64_t zero = 0;
  int64_t data_size = 1;
  int64_t data_rank = 0;
  DType compute = DType::f32;
  DType reduce = DType::f32;  // gradients on their way over the data axis
  bool pure = false;          // compute is bf16, and only norms have masters
  DType gradients = DType::f32;  // that the rank keeps, of a step so far: f32, or with `pure` bf16

  bool narrows_gradients() const { return reduce != DType::f32 && data_size > 1; }
  // Whether a unit's gradients of a micro-batch are made in f32 beside what the rank keeps.
  bool makes_gradients_apart() const { return zero >= 2 || gradients != DType::f32; }
  bool has_master() const { return compute != DType::f32 && !pure; }  // else the weights are what updates go to
  // Norms in f32 lie in one buffer for all ranks of the data axis, beside the weights: masters in pieces, and `pure`.
  bool keeps_norms_apart() const { return compute != DType::f32 && (zero >= 1 || pure); }
};

// Bytes of each of a rank's parameter buffers.
struct ParameterBytes {
  int64_t weights = 0;    // compute dtype; and f32 norms, where they are kept apart
  int64_t gradients = 0;  // Sharding::gradients
  int64_t master = 0;     // f32; 0 with f32 weights and without masters
  int64_t state = 0;      // the optimizer's columns, one after the other
};
ParameterBytes parameter_bytes(const ParameterLayout& layout, const Sharding& sharding, const StateColumns& columns);

// Starts of the buffers, device memory.
struct ParameterBuffers {
  std::byte* weights = nullptr;
  std::byte* gradients = nullptr;
  std::byte* master = nullptr;
  std::byte* state = nullptr;
};

// A range of a unit's elements in the buffers that an update touches, but for the optimizer's own.
struct UpdateRange {
  int64_t first;     // elements from the unit's start
  int64_t elements;  // of the range
  std::byte* gradients;  // Sharding::gradients
  float* master;         // null without masters
  std::byte* weights;    // compute dtype; null where the master is the weight
};

// Elements of one tensor that a rank holds: a box of the global tensor, in one piece in memory.
struct StatePiece {
  int64_t tensor = 0;  // index in the spec
  std::vector<int64_t> offset, shape;
  // What updates go to: `weight`, or where only norms have masters `narrow_weight`. The other is null.
  float* weight = nullptr;
  bf16* narrow_weight = nullptr;
  std::vector<std::byte*> columns;  // the optimizer's, in its order and dtypes; null where one has no values for it
  // Of the last step, summed, before clipping: in the dtype that they are kept in. The other is null.
  float* gradient = nullptr;
  bf16* narrow_gradient = nullptr;
  // Of columns with a value for each block: those of the tensor that the rank has come with one piece. It has no elements
  // where none of them is the rank's to write. Blocks are numbered as in TensorShard.
  int64_t first_block = 0, num_blocks = 0;
  // Of columns with a value for each row or column: the tensor's, which come with a piece without elements.
  int64_t rows = 0, cols = 0;

  int64_t count() const;
  int64_t column_bytes(const StateColumn& column) const;  // 0 where it has no values here
};

// Where elements of a box lie in the tensor, from the box's element `first` on.
IndexMap index_map(const TensorSpec& tensor, const ShardBox& box, int64_t first);

// This rank's part of a unit's norms: elements [first, first + count) of the unit. `master` is theirs, also where only
// norms have masters: then it lies in the buffer of all of them.
struct NormPiece {
  int64_t first = 0;
  int64_t count = 0;
  float* master = nullptr;
};

class ParameterStore {
 public:
  // Borrows the layout, the spec and the shards. `columns` are the optimizer's; none where nothing is trained.
  ParameterStore(const ModelSpec& spec, const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                 const Sharding& sharding, const ParameterBuffers& buffers, StateColumns columns = {});

  const ModelSpec& spec() const { return spec_; }
  const std::vector<TensorShard>& shards() const { return shards_; }
  const Sharding& sharding() const { return sharding_; }
  const ParameterLayout& layout() const { return layout_; }
  int64_t num_units() const { return static_cast<int64_t>(layout_.units.size()); }

  // The whole unit as its ops see it. Where the rank holds pieces only, its weights (ZeRO 3) lie in `gathered`, and
  // where they are made apart, its gradients in `whole_gradients`, of UnitRange::elements each.
  UnitParameters whole(int64_t unit, std::byte* gathered = nullptr, std::byte* whole_gradients = nullptr) const;
  // This rank's piece of a unit: of the weights in the compute dtype, and of the sum of its gradients, one row.
  std::byte* weights_piece(int64_t unit) const;
  // Norms in f32 of a unit that are kept apart from its weights: their number (0 where they are not kept apart), this
  // rank's part, and as many zeros in host memory.
  int64_t apart_norm_elements(int64_t unit) const;
  NormPiece norm_piece(int64_t unit) const;
  const float* zeros() const { return zeros_.data(); }
  Matrix gradients_piece(int64_t unit) const;
  int64_t piece_elements(int64_t unit) const { return layout_.piece_elements(range(unit)); }
  // What this rank updates: its piece, or with ZeRO 0 the whole unit.
  UpdateRange update_range(int64_t unit) const;
  // The optimizer's columns, and where what one of them has for update_range(unit) starts. One that has values only
  // before what comes last ends with these, and one that has them only for that begins with its first.
  const StateColumns& columns() const { return columns_; }
  std::byte* column(size_t column, int64_t unit) const;
  // Of one with a value for each row or column, where those of a tensor start.
  std::byte* factored_column(size_t column, size_t tensor) const;

  // The buffer that holds this rank's pieces of the summed gradients, and where a unit's piece starts in it, in elements.
  Matrix summed_gradients() const;
  int64_t offset_in_summed(int64_t unit) const;

  // All state that this rank updates; with `written_only` each element is some rank's once over the world: what the
  // rank writes to a checkpoint.
  std::vector<StatePiece> state(bool written_only) const;
  // Of a copy of what state(true) names, in which every weight and column of a piece starts at a multiple of
  // memory_alignment. Asks no buffer.
  int64_t snapshot_bytes() const;

 private:
  const UnitRange& range(int64_t unit) const { return layout_.units[static_cast<size_t>(unit)]; }
  int64_t piece_first(int64_t unit) const { return sharding_.data_rank * piece_elements(unit); }
  // Where a unit, or this rank's piece of it, starts in a buffer of whole units or of pieces only; in elements.
  int64_t offset_of_piece(int64_t unit, bool pieces_only) const;
  bool is_narrow(size_t tensor) const;  // whether updates go to its bf16 weights
  // Blocks of the tensor among what this rank updates of its unit, or of its piece of that: their number, and of the
  // first its place in the tensor and, in blocks, in what columns hold for the unit.
  struct HeldBlocks {
    int64_t first, count, in_columns;
  };
  HeldBlocks held_blocks(size_t tensor, bool piece_only) const;
  // Elements of what this rank updates of the unit that are before what comes last.
  int64_t held_before_last(int64_t unit) const;
  // body(tensor, offset, shape, at, blocks) for each box that lies in one piece in memory, `at` elements after the start
  // of what this rank updates of the unit. The tensor's blocks come with one of them, or with an empty one.
  template <typename Body>
  void for_each_box(bool written_only, const Body& body) const;
  // body(tensor) for each whose rows and columns this rank has, or writes.
  template <typename Body>
  void for_each_factored(bool written_only, const Body& body) const;

  const ModelSpec& spec_;
  const std::vector<TensorShard>& shards_;
  const ParameterLayout& layout_;
  Sharding sharding_;
  ParameterBuffers buffers_;
  StateColumns columns_;
  std::vector<int64_t> norm_offset_;  // elements, by unit, among the norms that are kept apart
  std::vector<float> zeros_;
};

}  // namespace gptrain
