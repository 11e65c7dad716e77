#include "step/state_blocks.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "base/dynamic_map.h"

namespace gptrain::inline step {
namespace {

constexpr auto signed_encoding = make_encode_table<true>();
constexpr auto unsigned_encoding = make_encode_table<false>();
constexpr auto signed_decoding = make_decode_table<true>();
constexpr auto unsigned_decoding = make_decode_table<false>();

// Encodes a block anew. `scales` are the saved scales of its elements. Replaces the codes and returns the new scale.
template <bool has_sign>
float encode_anew(const DecodeTable<has_sign>& decoding, const EncodeTable<has_sign>& encoding, const float* scales,
                  uint8_t* codes, int64_t count) {
  float values[state_block];
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = decoding.values[codes[i]] * scales[i];
    largest = std::max(largest, std::abs(values[i]));
  }
  const float scale = block_scale(largest);
  for (int64_t i = 0; i < count; ++i) codes[i] = code_of(encoding, values[i], inverse_of_scale(scale));
  return scale;
}

}  // namespace

OtherBlocks::OtherBlocks(TrainingStep& step, const ParallelConfig& saved) : step_(step), saved_(saved) {
  if (step.design().layout.end != UnitEnd::block_state) return;
  const ParallelConfig& own = step.design().config.parallel;
  for (StateSlice& piece : step.state()) {
    const auto index = static_cast<size_t>(piece.tensor);
    const TensorSpec& tensor = step.spec().tensors[index];
    if (tensor.has_block_state() && ranks_of_tensor(tensor, own) != saved_ranks(tensor))
      tensors_[index].push_back(std::move(piece));
  }
}

void OtherBlocks::take_scales(std::vector<Slice>& slices) {
  const StateColumns& columns = step_.parameters().columns();
  for (const auto& [index, pieces] : tensors_) {
    const TensorSpec& spec = step_.spec().tensors[index];
    const int64_t total = shard_of(spec, {saved_ranks(spec), 0}).blocks_total;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].granularity != StateGranularity::block) continue;
      const std::string name = fmt::format("{}/{}", columns[i].name, spec.name);
      std::erase_if(slices, [&name](const Slice& slice) { return slice.name == name; });
      std::vector<float>& scales = saved_scales_[{index, i}];
      scales.resize(total);
      slices.push_back({.name = name, .global_shape = {total}, .box = {{0}, {total}}, .data = scales.data()});
    }
  }
}

void OtherBlocks::reencode() {
  const StateColumns& columns = step_.parameters().columns();
  const auto next = [&columns](StateGranularity granularity, size_t from) {
    while (from < columns.size() && columns[from].granularity != granularity) ++from;
    return from;
  };
  for (const auto& [index, pieces] : tensors_) {
    const std::vector<int64_t> blocks = saved_blocks(pieces);
    size_t codes = next(StateGranularity::element_in_blocks, 0), scales = next(StateGranularity::block, 0);
    while (codes < columns.size()) {
      reencode(pieces, codes, scales, blocks);
      codes = next(StateGranularity::element_in_blocks, codes + 1);
      scales = next(StateGranularity::block, scales + 1);
    }
  }
}

// Returns the saved block of each element that this rank has of the tensor.
std::vector<int64_t> OtherBlocks::saved_blocks(const Pieces& pieces) const {
  const TensorSpec& spec = step_.spec().tensors[pieces.front().tensor];
  std::vector<TensorShard> saved;
  const int64_t ranks = saved_ranks(spec);
  for (int64_t rank = 0; rank < ranks; ++rank) saved.push_back(shard_of(spec, {ranks, rank}));
  std::vector<int64_t> blocks;
  for (const StateSlice& piece : pieces) {
    for (int64_t row = piece.offset[0]; row < piece.offset[0] + piece.shape[0]; ++row) {
      const size_t begin = blocks.size();
      blocks.resize(begin + static_cast<size_t>(piece.shape[1]));
      for (const TensorShard& shard : saved) {
        for (const ShardBox& box : shard.boxes) {
          if (!box.owned || row < box.offset[0] || row >= box.offset[0] + box.shape[0]) continue;
          const int64_t from = std::max(piece.offset[1], box.offset[1]);
          const int64_t to = std::min(piece.offset[1] + piece.shape[1], box.offset[1] + box.shape[1]);
          const int64_t in_shard = box.local_offset + (row - box.offset[0]) * box.shape[1] - box.offset[1];
          for (int64_t col = from; col < to; ++col)
            blocks[begin + static_cast<size_t>(col - piece.offset[1])] =
                shard.blocks_first + (in_shard + col) / state_block;
        }
      }
    }
  }
  return blocks;
}

void OtherBlocks::reencode(const Pieces& pieces, size_t codes, size_t scales, const std::vector<int64_t>& saved) const {
  const StateSlice& first = pieces.front();
  const StateSlice& with_blocks =
      *std::find_if(pieces.begin(), pieces.end(), [](const StateSlice& piece) { return piece.num_blocks > 0; });
  const std::vector<float>& saved_scales = saved_scales_.at({static_cast<size_t>(first.tensor), scales});
  const bool has_sign = step_.parameters().columns()[codes].has_sign;
  const auto elements = std::ssize(saved);
  std::vector<uint8_t> coded(saved.size());
  std::vector<float> own(with_blocks.num_blocks);
  step_.read_state(coded.data(), first.columns[codes], elements);
  for (int64_t block = 0; block < with_blocks.num_blocks; ++block) {
    const int64_t begin = block * state_block;
    const int64_t count = std::min(elements - begin, state_block);
    const int64_t* const from = saved.data() + begin;
    float element_scales[state_block];
    for (int64_t i = 0; i < count; ++i) element_scales[i] = saved_scales[from[i]];
    float& scale = own[block];
    if (std::all_of(from, from + count, [from](int64_t other) { return other == *from; })) {
      scale = element_scales[0];
    } else if (has_sign) {
      scale = encode_anew(signed_decoding, signed_encoding, element_scales, coded.data() + begin, count);
    } else {
      scale = encode_anew(unsigned_decoding, unsigned_encoding, element_scales, coded.data() + begin, count);
    }
  }
  step_.write_state(first.columns[codes], coded.data(), elements);
  step_.write_state(with_blocks.columns[scales], own.data(), std::ssize(own) * dtype_bytes(DType::f32));
}

}  // namespace gptrain::step
