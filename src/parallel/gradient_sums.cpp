#include "parallel/gradient_sums.h"

#include <algorithm>
#include <utility>

#include "parallel/compressed_reducer.h"
#include "parallel/low_rank_reducer.h"
#include "parallel/sketch_reducer.h"
#include "parallel/sparse_reducer.h"

namespace gptrain::inline parallel {
namespace {

// In the order of GradientCodec.
constexpr EnumArray<GradientCodec, const GradientSum*, num_gradient_codecs> functions = {
    {nullptr, &coded_sum, &coded_sum, &low_rank_sum, &sparse_sum, &sketch_sum, &signs_sum}};

bool all_owned(const TensorShard& shard) {
  return !shard.boxes.empty() &&
         std::all_of(shard.boxes.begin(), shard.boxes.end(), [](const ShardBox& box) { return box.owned; });
}

// Adds the boxes of the errors of a tensor's local elements [kept.first, kept.end()).
void add_boxes(const TensorShard& shard, const CodedTensor& coded, const UnitPiece& kept,
               std::vector<ResidualBox>& boxes) {
  for (const ShardBox& box : shard.boxes) {
    const int64_t from = std::max<int64_t>(0, kept.first - box.local_offset);
    const int64_t to = std::min(box.count(), kept.end() - box.local_offset);
    if (from >= to) continue;
    for_each_part(box, from, to, coded.residual + box.local_offset,
                  [&](std::vector<int64_t> offset, std::vector<int64_t> shape, int64_t at) {
                    boxes.push_back(
                        {.tensor = coded.tensor, .offset = std::move(offset), .shape = std::move(shape), .first = at});
                  });
  }
}

}  // namespace

const GradientSum& gradient_sum(GradientCodec kind) { return *functions[kind]; }

bool codes_gradients(const CompressionConfig& compression, const TensorSpec& tensor, int64_t tensor_ranks) {
  if (!compression.is_on() || !tensor.is_matrix() || tensor.count() < compression.min_elements) return false;
  const GradientSum& sum = gradient_sum(compression.kind);
  if (sum.takes != nullptr && !sum.takes(compression, tensor)) return false;
  return tensor_ranks == 1 || (tensor.split != Split::none && shard_of(tensor, {tensor_ranks, 0}).shared_kv_count == 0);
}

GradientMessages make_gradient_messages(const CompressionConfig& compression, const ModelSpec& spec,
                                        const std::vector<TensorShard>& shards, const ParameterLayout& layout,
                                        int64_t tensor_ranks, const ReplicaRank& in_node) {
  GradientMessages messages{.kind = compression.kind, .bits = compression.facts().bits, .in_node = in_node};
  messages.units.resize(layout.units.size());
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const UnitRange& range = layout.units[unit];
    UnitMessages& of_unit = messages.units[unit];
    of_unit.first_residual = messages.num_residuals;
    if (range.elements == 0 || range.pieces == 1) continue;
    std::vector<CodedTensor> coded;
    for (auto i = static_cast<size_t>(range.first_tensor);
         i < static_cast<size_t>(range.first_tensor + range.num_tensors); ++i) {
      if (!codes_gradients(compression, spec.tensors[i], tensor_ranks) || !all_owned(shards[i])) continue;
      const Segment& segment = layout.segments[i];
      const int64_t first = segment.offset - range.offset;
      const int64_t share = range.elements / in_node.size;
      const int64_t from = std::clamp(in_node.rank * share - first, int64_t{0}, segment.count);
      const int64_t to = std::clamp((in_node.rank + 1) * share - first, int64_t{0}, segment.count);
      coded.push_back({.tensor = static_cast<int64_t>(i),
                       .first = first,
                       .count = segment.count,
                       .residual = messages.num_residuals - from});
      add_boxes(shards[i], coded.back(), {from, to - from}, messages.boxes);
      messages.num_residuals += whole_units(to - from);
    }
    if (coded.empty()) continue;
    std::sort(coded.begin(), coded.end(), [](const CodedTensor& a, const CodedTensor& b) { return a.first < b.first; });
    of_unit.layout =
        gradient_sum(compression.kind)
            .lay_out({.compression = compression, .spec = spec, .range = range, .tensors = coded}, messages);
    of_unit.num_residuals = messages.num_residuals - of_unit.first_residual;
  }
  return messages;
}

int64_t all_residual_bytes(const CompressionConfig& compression, const ModelSpec& spec, int64_t tensor_ranks,
                           int64_t copies) {
  if (!compression.error || copies == 1) return 0;
  int64_t elements = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    if (!codes_gradients(compression, tensor, tensor_ranks)) continue;
    elements += copies * tensor.count();
    if (!compression.facts().has_factors) continue;
    const int64_t cols = tensor.shape.back(), rows = shard_of(tensor, {}).count() / cols;
    elements += compression.rank * (compression.alternate ? cols + rows : cols);
  }
  return elements * dtype_bytes(DType::f32);
}

}  // namespace gptrain::parallel
