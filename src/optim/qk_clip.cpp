#include "optim/qk_clip.h"

#include <algorithm>
#include <string_view>

#include "model/record.h"
#include "optim/element_optimizer.h"

namespace gptrain::inline optim {
namespace {

// RETURNS whether the tensor has queries, keys and values as its sections.
bool is_of_queries(const TensorSpec& tensor) {
  return tensor.name.find(".attention.qkv.") != std::string::npos && tensor.sections.size() == 3;
}

// The heads of a tensor with queries and keys.
struct Heads {
  explicit Heads(const TensorSpec& tensor)
      : num_heads(tensor.sections[0].rows / tensor.sections[0].group_rows),
        num_kv_heads(tensor.sections[1].rows / tensor.sections[1].group_rows),
        rows(tensor.sections[0].group_rows) {}

  int64_t num_heads, num_kv_heads;
  int64_t rows;  // rows of a head
};

// Adds the segments of a tensor that this rank updates.
void add_segments(const ParameterStore& parameters, size_t index, std::vector<HeadSegment>& segments) {
  const TensorSpec& tensor = parameters.spec().tensors[index];
  const Heads heads(tensor);
  const int64_t layer = parameters.spec().units[tensor.unit].layer;
  const int64_t group = heads.num_heads / heads.num_kv_heads, cols = tensor.is_matrix() ? tensor.shape[1] : 1;
  const UpdateRange held = parameters.update_range(tensor.unit);
  const int64_t start =
      parameters.layout().segments[index].offset - parameters.layout().units[tensor.unit].offset - held.first;
  for (const ShardBox& box : parameters.shards()[index].boxes) {
    for (int64_t i = 0; i < heads.num_heads + heads.num_kv_heads; ++i) {
      const int64_t from_row = std::max(box.offset[0], i * heads.rows);
      const int64_t to_row = std::min(box.offset[0] + box.shape[0], (i + 1) * heads.rows);
      if (from_row >= to_row) continue;
      const int64_t box_start = start + box.local_offset - box.offset[0] * cols;
      const int64_t from = std::max<int64_t>(0, box_start + from_row * cols);
      const int64_t to = std::min(held.elements, box_start + to_row * cols);
      if (from >= to) continue;
      const bool is_query = i < heads.num_heads;
      const int64_t kv_head = is_query ? i / group : i - heads.num_heads, first_score = layer * heads.num_heads;
      segments.push_back({.offset = from,
                          .count = to - from,
                          .first_head = first_score + kv_head * group,
                          .num_heads = group,
                          .head = is_query ? first_score + i : -1});
    }
  }
}

struct ClippedSegments {
  std::vector<HeadSegment> all;
  std::vector<int64_t> first;  // by unit, then the end

  explicit ClippedSegments(const ParameterStore& parameters) : first{0} {
    for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit) {
      const UnitRange& range = parameters.layout().units[unit];
      for (int64_t i = range.first_tensor; range.elements > 0 && i < range.first_tensor + range.num_tensors; ++i) {
        const auto index = static_cast<size_t>(i);
        if (is_of_queries(parameters.spec().tensors[index])) add_segments(parameters, index, all);
      }
      first.push_back(std::ssize(all));
    }
  }
  int64_t bytes() const { return std::ssize(all) * static_cast<int64_t>(sizeof(HeadSegment)); }
};

}  // namespace

QkClip::QkClip(const UpdateContext& context, double threshold, const Matrix& scores, std::byte* tables)
    : context_(context),
      threshold_(threshold),
      scores_(scores),
      segments_(reinterpret_cast<const HeadSegment*>(tables)) {
  ClippedSegments segments(context.parameters);
  if (!segments.all.empty()) context.backend.upload(tables, segments.all.data(), segments.bytes());
  first_segment_ = std::move(segments.first);
}

int64_t QkClip::table_bytes(const ParameterStore& parameters) { return align_up(ClippedSegments(parameters).bytes()); }

void QkClip::clip(int64_t unit) const {
  const int64_t first = first_segment_[unit];
  const int64_t end = first_segment_[static_cast<size_t>(unit) + 1];
  if (first == end) return;
  const ElementUpdate operands = unit_operands(context_, unit, 0, context_.parameters.update_range(unit).elements);
  context_.backend.run(ClipHeads{.segments = segments_ + first,
                                 .num_segments = end - first,
                                 .threshold = threshold_,
                                 .state = context_.state,
                                 .largest = scores_,
                                 .master = operands.master,
                                 .weights = operands.weights});
}

}  // namespace gptrain::optim
