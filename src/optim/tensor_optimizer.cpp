#include "optim/tensor_optimizer.h"

#include <algorithm>

#include "model/record.h"

namespace gptrain {
namespace {

// Elements of a unit.
struct Span {
  int64_t first, end;
};

// What this rank adds the squares of: its piece, also where it updates the whole unit. Norms, which lie first in a
// unit, have no sums.
Span measured_span(const ParameterStore& parameters, int64_t unit) {
  const int64_t piece = parameters.piece_elements(unit);
  const int64_t first = parameters.sharding().data_rank * piece;
  const int64_t norms = parameters.layout().units[static_cast<size_t>(unit)].norm_elements;
  return {std::max(first, norms), std::max(first + piece, norms)};
}

struct MeasuredSegments {
  std::vector<UpdateSegment> all;
  std::vector<int64_t> first;  // by unit, and the end
};

MeasuredSegments measured_segments(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                   const ParameterStore& parameters) {
  MeasuredSegments segments;
  const ParameterLayout& layout = parameters.layout();
  for (int64_t unit = 0; unit < parameters.num_units(); ++unit) {
    segments.first.push_back(std::ssize(segments.all));
    const UnitRange& range = layout.units[static_cast<size_t>(unit)];
    const Span span = measured_span(parameters, unit);
    for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
      const auto tensor = static_cast<size_t>(i);
      if (!spec.tensors[tensor].decay) continue;
      const int64_t start = layout.segments[tensor].offset - range.offset;
      for (const ShardBox& box : shards[tensor].boxes) {
        const int64_t from = std::max(span.first, start + box.local_offset);
        const int64_t to = std::min(span.end, start + box.local_offset + box.count());
        if (box.owned && from < to)
          segments.all.push_back({.offset = from - span.first, .count = to - from, .decay = 1, .tensor = i});
      }
    }
  }
  segments.first.push_back(std::ssize(segments.all));
  return segments;
}

int64_t segments_bytes(const MeasuredSegments& segments) {
  return std::ssize(segments.all) * static_cast<int64_t>(sizeof(UpdateSegment));
}

}  // namespace

TensorSums::TensorSums(const UpdateContext& context, std::byte* tables)
    : context_(context), segments_(reinterpret_cast<const UpdateSegment*>(tables)) {
  MeasuredSegments segments = measured_segments(context.spec, context.shards, context.parameters);
  const int64_t bytes = segments_bytes(segments);
  if (bytes > 0) context.backend.upload(tables, segments.all.data(), bytes);
  first_segment_ = std::move(segments.first);
  sums_ = Matrix(tables + align_up(bytes), DType::f64, std::ssize(context.spec.tensors), 2);
}

int64_t TensorSums::table_bytes(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                const ParameterStore& parameters) {
  const Matrix sums(nullptr, DType::f64, std::ssize(spec.tensors), 2);
  return align_up(segments_bytes(measured_segments(spec, shards, parameters))) + align_up(sums.bytes());
}

void TensorSums::measure(const std::function<void(const ElementUpdate&, int64_t, const Matrix&)>& run) const {
  const ParameterStore& parameters = context_.parameters;
  // Rows of tensors that this rank has nothing of hold the sums of the step before.
  const Matrix nothing(nullptr, DType::f32, 1, 0);
  ElementUpdate none{.state = context_.state, .gradients = nothing, .master = nothing, .columns = {}, .weights = {}};
  for (size_t i = 0; i < parameters.columns().size(); ++i) none.columns[i] = nothing;
  run(none, 0, sums_);
  for (int64_t unit = 0; unit < parameters.num_units(); ++unit) {
    const int64_t first = first_segment_[static_cast<size_t>(unit)];
    const int64_t end = first_segment_[static_cast<size_t>(unit) + 1];
    if (first == end) continue;
    const Span span = measured_span(parameters, unit);
    ElementUpdate operands =
        unit_operands(context_, unit, span.first - parameters.update_range(unit).first, span.end - span.first);
    operands.segments = segments_ + first;
    operands.num_segments = end - first;
    const UnitRange& range = parameters.layout().units[static_cast<size_t>(unit)];
    run(operands, range.first_tensor, sums_.row_range(range.first_tensor, range.num_tensors));
  }
}

int64_t tensor_table_bytes(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                           const ParameterStore& parameters) {
  return element_table_bytes(spec, shards, parameters) + TensorSums::table_bytes(spec, shards, parameters);
}

}  // namespace gptrain
