#include "optim/tensor_optimizer.h"

#include <algorithm>

#include "model/record.h"

namespace gptrain::inline optim {
namespace {

// Adds the segments of a tensor in elements [first, end) of its unit. Their offsets count from `first`.
void add_measured(const ParameterStore& parameters, const PartNumbers& numbers, int64_t index, int64_t first,
                  int64_t end, std::vector<UpdateSegment>& segments) {
  const auto i = static_cast<size_t>(index);
  const ParameterLayout& layout = parameters.layout();
  const TensorSpec& tensor = parameters.spec().tensors[i];
  const int64_t start = layout.segments[i].offset - layout.units[tensor.unit].offset;
  for (const ShardBox& whole : parameters.shards()[i].boxes) {
    if (!whole.owned) continue;
    for (const auto& [box, part] : numbers.cut(tensor, index, whole)) {
      const int64_t from = std::max(first, start + box.local_offset);
      const int64_t to = std::min(end, start + box.local_offset + box.count());
      if (from < to)
        segments.push_back({.offset = from - first, .count = to - from, .decay = tensor.decay ? 1 : 0, .tensor = part});
    }
  }
}

}  // namespace

int64_t TensorSums::Measured::segment_bytes() const {
  return std::ssize(segments) * static_cast<int64_t>(sizeof(UpdateSegment));
}

// RETURNS the segments and ops of this rank's piece of every unit, even if it updates the whole unit. Norms lie first
// in a unit.
TensorSums::Measured TensorSums::measured(const ParameterStore& parameters, SummedParts summed) {
  const ModelSpec& spec = parameters.spec();
  const PartNumbers numbers(spec, summed);
  const ParameterLayout& layout = parameters.layout();
  const bool all = summed == SummedParts::parts, masters_of_norms_only = parameters.sharding().pure;
  Measured measured;
  measured.num_rows = numbers.all();
  std::vector<Part> norm_parts;  // norms' ops, run last, so that readers of the plan find units in order
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit) {
    const UnitRange& range = layout.units[unit];
    const UnitPiece piece = parameters.piece(unit);
    const auto add_part = [&](int64_t first_tensor, int64_t num_tensors, int64_t first, int64_t end, bool of_norms) {
      const int64_t first_segment = std::ssize(measured.segments);
      for (int64_t i = first_tensor; i < first_tensor + num_tensors; ++i) {
        if (all || spec.tensors[i].decay) add_measured(parameters, numbers, i, first, end, measured.segments);
      }
      const int64_t num_segments = std::ssize(measured.segments) - first_segment;
      const int64_t first_row = numbers.first(first_tensor);
      const int64_t num_rows = numbers.first(first_tensor + num_tensors) - first_row;
      std::vector<Part>& parts = of_norms ? norm_parts : measured.parts;
      if (num_segments > 0)
        parts.push_back({unit, first, end, first_segment, num_segments, first_row, num_rows, of_norms});
    };
    const int64_t first = all && !masters_of_norms_only ? piece.first : std::max(piece.first, range.norm_elements);
    add_part(range.first_tensor, range.num_tensors, first, std::max(piece.end(), first), false);
    for (int64_t i = range.first_tensor; all && masters_of_norms_only && i < range.first_tensor + range.num_tensors;
         ++i) {
      if (spec.tensors[i].norm_use != NormUse::no_norm)
        add_part(i, 1, piece.first, std::min(piece.end(), range.norm_elements), true);
    }
  }
  measured.parts.insert(measured.parts.end(), norm_parts.begin(), norm_parts.end());
  return measured;
}

TensorSums::TensorSums(const UpdateContext& context, std::byte* tables, SummedParts summed)
    : context_(context), segments_(reinterpret_cast<const UpdateSegment*>(tables)) {
  Measured all = measured(context.parameters, summed);
  const int64_t bytes = all.segment_bytes();
  if (bytes > 0) context.backend.upload(tables, all.segments.data(), bytes);
  parts_ = std::move(all.parts);
  sums_ = all.sums(tables + align_up(bytes));
}

int64_t TensorSums::table_bytes(const ParameterStore& parameters, SummedParts summed) {
  const Measured all = measured(parameters, summed);
  return align_up(all.segment_bytes()) + align_up(all.sums(nullptr).bytes());
}

void TensorSums::measure(const std::function<void(const ElementUpdate&, int64_t, const Matrix&)>& run) const {
  const ParameterStore& parameters = context_.parameters;
  EventLog* const log = context_.groups.log();
  const auto run_there = [&](const ElementUpdate& operands, int64_t first_row, const Matrix& sums) {
    const bool logs = context_.on_host_of_gpu && log != nullptr && log->on();
    if (logs) log->set_queue(Event::Queue::update);
    run(operands, first_row, sums);
    if (logs) log->set_queue(Event::Queue::ops);
  };
  // Clears the last step's sums of tensors of which this rank has no elements.
  const Matrix nothing(nullptr, DType::f32, 1, 0);
  ElementUpdate none{.state = context_.state, .gradients = nothing, .master = nothing, .columns = {}, .weights = {}};
  std::fill(none.columns.begin(), none.columns.end(), nothing);
  run_there(none, 0, sums_);
  for (const Part& part : parts_) {
    if (context_.away != nullptr) context_.away->fetch_with_gradients(part.unit);
    const int64_t first = part.first - parameters.update_range(part.unit).first, elements = part.end - part.first;
    ElementUpdate operands = unit_operands(context_, part.unit, first, elements);
    if (part.masters_of_norms_only) {
      operands.master = Matrix(parameters.norm_piece(part.unit).master + first, DType::f32, 1, elements);
      operands.weights = {};
    }
    operands.segments = segments_ + part.first_segment;
    operands.num_segments = part.num_segments;
    run_there(operands, part.first_row, sums_.row_range(part.first_row, part.num_rows));
  }
}

int64_t tensor_table_bytes(const ParameterStore& parameters) {
  return element_table_bytes(parameters) + TensorSums::table_bytes(parameters);
}

}  // namespace gptrain::optim
