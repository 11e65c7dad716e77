#include "model/spec/shard.h"

#include <algorithm>
#include <deque>
#include <fmt/format.h>
#include <mutex>
#include <stdexcept>

#include "base/dynamic_map.h"

namespace gptrain::inline spec {
namespace {

int64_t quotient(int64_t total, int64_t parts, const TensorSpec& tensor) {
  if (total % parts != 0)
    throw std::logic_error(fmt::format("{}: {} does not divide over {} ranks", tensor.name, total, parts));
  return total / parts;
}

// The rows of one section that a rank holds. owned: no lower rank holds them. replicated: several ranks hold them.
struct Rows {
  int64_t first, count;
  bool owned, replicated;
};

Rows rows_of(const Section& section, const TensorSpec& tensor, TensorRank tensor_rank) {
  const int64_t pieces = section.rows / section.group_rows;
  if (pieces >= tensor_rank.size) {
    const int64_t count = quotient(pieces, tensor_rank.size, tensor) * section.group_rows;
    return {tensor_rank.rank * count, count, true, false};
  }
  const int64_t ranks_of_head = quotient(tensor_rank.size, pieces, tensor);
  return {tensor_rank.rank / ranks_of_head * section.group_rows, section.group_rows,
          tensor_rank.rank % ranks_of_head == 0, true};
}

TensorShard whole(const TensorSpec& tensor, TensorRank tensor_rank) {
  TensorShard shard{.shape = tensor.shape, .boxes = {}};
  shard.boxes.push_back({whole_box(tensor.shape), 0, tensor_rank.rank == 0});
  return shard;
}

TensorShard by_columns(const TensorSpec& tensor, TensorRank tensor_rank) {
  const int64_t cols = quotient(tensor.shape[1], tensor_rank.size, tensor);
  TensorShard shard{.shape = {tensor.shape[0], cols}, .boxes = {}};
  shard.boxes.push_back({{{0, tensor_rank.rank * cols}, shard.shape}, 0, true});
  return shard;
}

// RETURNS the shard of a table split by tokens; padding is whole rows at the end of the vocabulary.
TensorShard by_vocabulary(const TensorSpec& tensor, TensorRank tensor_rank) {
  const int64_t rows = vocabulary_rows(tensor.shape[0], tensor_rank.size);
  const int64_t first = rows * tensor_rank.rank;
  TensorShard shard{.shape = {rows, tensor.shape[1]}, .boxes = {}};
  const int64_t held = std::min(rows, tensor.shape[0] - first);
  if (held > 0) shard.boxes.push_back({{{first, 0}, {held, tensor.shape[1]}}, 0, true});
  return shard;
}

TensorShard by_rows(const TensorSpec& tensor, TensorRank tensor_rank) {
  const bool matrix = tensor.shape.size() == 2;
  const int64_t cols = matrix ? tensor.shape[1] : 1;
  TensorShard shard;
  int64_t section_first = 0;
  int64_t local_rows = 0;
  for (const Section& section : tensor.sections) {
    const Rows rows = rows_of(section, tensor, tensor_rank);
    const int64_t first = section_first + rows.first;
    ShardBox box{{{first}, {rows.count}}, local_rows * cols, rows.owned};
    if (matrix) {
      box.offset.push_back(0);
      box.shape.push_back(cols);
    }
    if (rows.replicated) {
      if (shard.shared_kv_count == 0) shard.shared_kv_first = box.local_offset;
      shard.shared_kv_count += rows.count * cols;
    }
    // Rows that are neighbours in the global tensor become one box, so that a single rank has one box for the tensor.
    ShardBox* const last = shard.boxes.empty() ? nullptr : &shard.boxes.back();
    if (last != nullptr && last->owned == box.owned && last->offset[0] + last->shape[0] == first) {
      last->shape[0] += rows.count;
    } else {
      shard.boxes.push_back(std::move(box));
    }
    section_first += section.rows;
    local_rows += rows.count;
  }
  shard.shape = {local_rows};
  if (matrix) shard.shape.push_back(cols);
  return shard;
}

TensorShard cut(const TensorSpec& tensor, TensorRank tensor_rank) {
  switch (tensor.split) {
    case Split::columns:
      return by_columns(tensor, tensor_rank);
    case Split::vocabulary:
      return by_vocabulary(tensor, tensor_rank);
    case Split::rows:
      return by_rows(tensor, tensor_rank);
    case Split::none:
      break;
  }
  return whole(tensor, tensor_rank);
}

void number_blocks(const TensorSpec& tensor, TensorRank tensor_rank, TensorShard& shard) {
  for (int64_t rank = 0; rank < tensor_rank.size; ++rank) {
    const TensorShard other = cut(tensor, {tensor_rank.size, rank});
    if (rank == tensor_rank.rank) shard.blocks_first = other.any_owned() ? shard.blocks_total : 0;
    if (!other.any_owned()) continue;
    const int64_t end = other.boxes.back().local_offset + other.boxes.back().count();
    shard.blocks_total += (end + state_block - 1) / state_block;
  }
}

}  // namespace

int64_t TensorShard::count() const { return element_count(shape); }

bool TensorShard::any_owned() const {
  return std::any_of(boxes.begin(), boxes.end(), [](const ShardBox& box) { return box.owned; });
}

TensorShard shard_of(const TensorSpec& tensor, TensorRank tensor_rank) {
  TensorShard shard = cut(tensor, tensor_rank);
  if (tensor.has_block_state()) number_blocks(tensor, tensor_rank, shard);
  return shard;
}

namespace {

// Cuts the tensors of a model for one rank. Layers have tensors that are cut alike, so only the first is cut.
class Cutter {
 public:
  explicit Cutter(TensorRank tensor_rank) : tensor_rank_(tensor_rank) {}

  // Borrows the tensor.
  const TensorShard& shard_of(const TensorSpec& tensor) {
    const auto are_equal = [](const Section& a, const Section& b) {
      return a.rows == b.rows && a.group_rows == b.group_rows;
    };
    const auto is_alike = [&](const Known& known) {
      const TensorSpec& other = *known.tensor;
      return other.split == tensor.split && other.shape == tensor.shape && other.norm_use == tensor.norm_use &&
             std::equal(other.sections.begin(), other.sections.end(), tensor.sections.begin(), tensor.sections.end(),
                        are_equal);
    };
    const auto known = std::find_if(known_.begin(), known_.end(), is_alike);
    if (known != known_.end()) return known->shard;
    return known_.emplace_back(Known{&tensor, spec::shard_of(tensor, tensor_rank_)}).shard;
  }

 private:
  struct Known {
    const TensorSpec* tensor;
    TensorShard shard;
  };
  TensorRank tensor_rank_;
  std::vector<Known> known_;  // a dozen: the tensors of a block and of the two ends
};

}  // namespace

std::vector<TensorShard> shard_tensors(const ModelSpec& spec, TensorRank tensor_rank, ExpertRank expert_rank) {
  std::vector<TensorShard> shards;
  shards.reserve(spec.tensors.size());
  std::vector<int64_t> experts(spec.units.size(), 0);  // by unit: experts of all ranks
  for (const TensorSpec& tensor : spec.tensors) {
    int64_t& count = experts[tensor.unit];
    count = std::max(count, int64_t{tensor.expert} + 1);
  }
  Cutter cutter(tensor_rank), expert_cutter(expert_rank.tensor);
  for (const TensorSpec& tensor : spec.tensors) {
    const auto unit = static_cast<size_t>(tensor.unit);
    if (spec.units[unit].kind != UnitKind::experts) {
      shards.push_back(cutter.shard_of(tensor));
      continue;
    }
    const bool is_own = tensor.expert / quotient(experts[unit], expert_rank.size, tensor) == expert_rank.rank;
    const TensorShard& shard = expert_cutter.shard_of(tensor);
    shards.push_back(is_own ? shard : TensorShard{.shape = {0, shard.shape[1]}, .boxes = {}});
  }
  return shards;
}

std::shared_ptr<const std::vector<TensorShard>> shared_shards(const std::shared_ptr<const ModelSpec>& spec,
                                                              TensorRank tensor_rank, ExpertRank expert_rank) {
  struct Cached {
    std::shared_ptr<const ModelSpec> spec;
    TensorRank tensor_rank;
    ExpertRank expert_rank;
    std::shared_ptr<const std::vector<TensorShard>> shards;
  };
  constexpr size_t most_cached = 4;  // tensor ranks of a stage are of at most three kinds in most models
  static std::mutex mutex;
  static std::deque<Cached> cache;
  const std::lock_guard lock(mutex);
  for (const Cached& known : cache)
    if (known.spec == spec && known.tensor_rank == tensor_rank && known.expert_rank == expert_rank) return known.shards;
  if (cache.size() == most_cached) cache.pop_front();
  cache.push_back({spec, tensor_rank, expert_rank,
                   std::make_shared<const std::vector<TensorShard>>(shard_tensors(*spec, tensor_rank, expert_rank))});
  return cache.back().shards;
}

void keep_table_copy(const ModelSpec& spec, std::vector<TensorShard>& shards) {
  for (size_t i = 0; i < spec.tensors.size() && spec.tensors[i].unit == 0; ++i) {
    if (spec.tensors[i].split != Split::vocabulary) shards[i].boxes.clear();
    for (ShardBox& box : shards[i].boxes) box.owned = false;
  }
}

int64_t vocabulary_rows(int64_t vocab_size, int64_t tensor_size) {
  const int64_t multiple = vocab_multiple * tensor_size;
  return (vocab_size + multiple - 1) / multiple * vocab_multiple;
}

int64_t ranks_of_kv_head(const ModelConfig& model, int64_t tensor_size) {
  return tensor_size > model.num_kv_heads ? tensor_size / model.num_kv_heads : 1;
}

}  // namespace gptrain::spec
