// One tensor-parallel rank's shard of every tensor (arXiv 1909.08053): the elements of the global tensor that it holds,
// and their positions in the local tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/spec/box.h"
#include "model/spec/spec.h"

namespace gptrain::inline spec {

// A rank's position on the tensor axis.
struct TensorRank {
  int64_t size = 1;
  int64_t rank = 0;

  bool operator==(const TensorRank&) const = default;
};

// A rank's position on the expert axis. Each rank of the axis holds a run of experts, and all runs have the same
// length. The ranks of `tensor` share each expert; with one rank, experts are whole.
struct ExpertRank {
  int64_t size = 1;
  int64_t rank = 0;
  TensorRank tensor = {};

  bool operator==(const ExpertRank&) const = default;
};

// A box of the global tensor's true shape, contiguous and row-major in the rank's local tensor.
struct ShardBox : Box {
  int64_t local_offset;  // elements from the start of the local tensor
  // False if a lower rank holds the same elements; the lower rank writes them and counts them in the gradient's norm.
  bool owned;
};

// Cuts elements [first, end) of a box into boxes: part of a row, whole rows, part of a row. Calls body(offset, shape,
// at) for each, where `at` is `start` plus the number of elements of the box before it.
template <typename Body>
void for_each_part(const ShardBox& box, int64_t first, int64_t end, int64_t start, const Body& body) {
  if (box.shape.size() == 1)
    return body(std::vector<int64_t>{box.offset[0] + first}, std::vector<int64_t>{end - first}, start + first);
  const int64_t cols = box.shape[1];
  while (first < end) {
    const int64_t row = first / cols;
    const int64_t col = first % cols;
    const int64_t rows = col == 0 ? (end - first) / cols : 0;
    const int64_t width = rows > 0 ? cols : std::min(cols - col, end - first);
    body(std::vector<int64_t>{box.offset[0] + row, box.offset[1] + col},
         std::vector<int64_t>{std::max<int64_t>(rows, 1), width}, start + first);
    first += std::max<int64_t>(rows, 1) * width;
  }
}

struct TensorShard {
  std::vector<int64_t> shape;   // local, padding included
  std::vector<ShardBox> boxes;  // disjoint, in the order of their local offsets; empty if the rank has padding only
  // Elements [shared_kv_first, shared_kv_first + shared_kv_count) of the local tensor are keys' and values' heads that
  // other ranks hold, too (fewer heads than ranks); their gradients are summed over these ranks.
  int64_t shared_kv_first = 0;
  int64_t shared_kv_count = 0;
  // Numbering of blocks of state_block elements, for tensors with TensorSpec::has_block_state. The first block begins
  // with the local tensor; padding after the boxes has none. Ranks with different elements have different blocks,
  // numbered rank after rank; this rank's begin at blocks_first of blocks_total.
  int64_t blocks_first = 0;
  int64_t blocks_total = 0;

  int64_t count() const;  // elements of `shape`
  bool any_owned() const;
};

// RETURNS the shards of all tensors of the spec. THROWS std::logic_error if a tensor does not divide over the ranks;
// config checks have refused that before. Experts with units of their own are spread over the ranks of `expert_rank`,
// and those of other ranks have empty shards.
std::vector<TensorShard> shard_tensors(const ModelSpec& spec, TensorRank tensor_rank, ExpertRank expert_rank = {});

// RETURNS the list of shard_tensors. Keeps the last four lists, so that plans of equal ranks share a list. Callable by
// several threads at once.
std::shared_ptr<const std::vector<TensorShard>> shared_shards(const std::shared_ptr<const ModelSpec>& spec,
                                                              TensorRank tensor_rank, ExpertRank expert_rank);

// RETURNS the number of ranks over which the tensor is cut. `Sizes`: as ParallelConfig.
template <typename Sizes>
int64_t ranks_of_tensor(const TensorSpec& tensor, const Sizes& sizes) {
  return tensor.expert >= 0 && sizes.expert > 1 ? sizes.expert_tensor : sizes.tensor;
}

// RETURNS the shard of one tensor. THROWS as shard_tensors.
TensorShard shard_of(const TensorSpec& tensor, TensorRank tensor_rank);

// Changes the embedding's shards for a last stage that holds a copy of the token table for a tied head. The table's
// elements are not owned, and the rest of the unit is padding, so that both stages have the table at the same offset.
void keep_table_copy(const ModelSpec& spec, std::vector<TensorShard>& shards);

// RETURNS the rows of the vocabulary that each of `tensor_size` ranks stores: a multiple of vocab_multiple.
int64_t vocabulary_rows(int64_t vocab_size, int64_t tensor_size);

// RETURNS the number of ranks with the same key/value head: tensor_size / num_kv_heads with fewer heads than ranks,
// else 1.
int64_t ranks_of_kv_head(const ModelConfig& model, int64_t tensor_size);

}  // namespace gptrain::spec
