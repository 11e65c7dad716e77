// One tensor-parallel rank's part of every tensor (arXiv 1909.08053): which elements of the global tensor it holds and
// where they lie in its own.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec/spec.h"

namespace gptrain {

// A rank's place on the tensor axis.
struct TensorPlace {
  int64_t size = 1;
  int64_t rank = 0;
};

// A box of the global tensor's true shape. It lies in one piece, row-major, in the rank's local tensor.
struct ShardBox {
  std::vector<int64_t> offset, shape;  // in the global tensor
  int64_t local_offset;                // elements from the start of the local tensor
  // False where a lower rank holds the same elements: that one writes them and counts them in the gradient's norm.
  bool owned;

  int64_t count() const;
};

struct TensorShard {
  std::vector<int64_t> shape;   // local, padding included
  std::vector<ShardBox> boxes;  // disjoint, in the order of their local offsets; none where the rank has padding only
  // Elements [replicas_first, replicas_first + replicas_count) of the local tensor are keys' and values' heads that
  // this and other ranks hold (fewer heads than ranks): their gradients are summed over those ranks.
  int64_t replicas_first = 0;
  int64_t replicas_count = 0;
  // Blocks of state_block elements, the first of which begins with the local tensor; padding behind the boxes has none.
  // Ranks that hold different elements have different blocks, numbered rank after rank: this one's begin at blocks_first
  // of blocks_total. Of tensors with TensorSpec::has_block_state.
  int64_t blocks_first = 0;
  int64_t blocks_total = 0;

  int64_t count() const;  // elements of `shape`
  bool any_owned() const;
};

// Shards of all tensors of the spec. What does not divide is a mistake of the caller (std::logic_error): a config is
// checked before.
std::vector<TensorShard> shard_tensors(const ModelSpec& spec, TensorPlace place);

// That of one tensor.
TensorShard shard_of(const TensorSpec& tensor, TensorPlace place);

// Makes the embedding's shards those of a last stage that has a copy of the token table for a tied head: another rank
// writes and counts what it holds of the table, and the rest of the unit is padding, so that both stages have the table
// at one place.
void keep_table_copy(const ModelSpec& spec, std::vector<TensorShard>& shards);

// Rows of the vocabulary that each of `tensor_size` ranks stores: a multiple of vocab_multiple.
int64_t vocabulary_rows(int64_t vocab_size, int64_t tensor_size);

// Ranks that hold the same key/value head: tensor_size / num_kv_heads where there are fewer heads than ranks, else 1.
int64_t kv_replicas(const ModelConfig& model, int64_t tensor_size);

}  // namespace gptrain
