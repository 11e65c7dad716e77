#include "optim/adamw.h"

#include <vector>

#include "model/record.h"

namespace gptrain {
namespace {

template <typename T>
int64_t array_bytes(int64_t count) {
  return align_up(count * static_cast<int64_t>(sizeof(T)));
}

}  // namespace

AdamWRule::AdamWRule(const OptimizerConfig& config, DType weight_dtype, const ModelSpec& spec,
                     const ParameterLayout& layout, OptimizerMemory memory, StepState* state, Backend& backend)
    : config_(config),
      weight_dtype_(weight_dtype),
      layout_(layout),
      memory_(memory),
      tables_(tables_at(memory.tables, static_cast<int64_t>(layout.segments.size()))),
      state_(state),
      backend_(backend) {
  std::vector<SquaredNorm::Segment> norm_segments;
  std::vector<AdamW::Segment> update_segments;
  for (size_t i = 0; i < layout.segments.size(); ++i) {
    const Segment& segment = layout.segments[i];
    const UnitRange& unit = layout.units[static_cast<size_t>(spec.tensors[i].unit)];
    norm_segments.push_back({segment.offset, segment.count});
    update_segments.push_back({segment.offset - unit.offset, segment.count, spec.tensors[i].decay ? 1 : 0});
  }
  backend_.upload(tables_.norm_segments, norm_segments.data(),
                  static_cast<int64_t>(norm_segments.size() * sizeof(SquaredNorm::Segment)));
  backend_.upload(tables_.update_segments, update_segments.data(),
                  static_cast<int64_t>(update_segments.size() * sizeof(AdamW::Segment)));
}

int64_t AdamWRule::table_bytes(const ModelSpec& spec) {
  const auto n = static_cast<int64_t>(spec.tensors.size());
  return array_bytes<double>(n) + array_bytes<SquaredNorm::Segment>(n) + array_bytes<AdamW::Segment>(n);
}

AdamWRule::Tables AdamWRule::tables_at(std::byte* memory, int64_t num_tensors) {
  std::byte* norm_segments = memory + array_bytes<double>(num_tensors);
  std::byte* update_segments = norm_segments + array_bytes<SquaredNorm::Segment>(num_tensors);
  return {reinterpret_cast<double*>(memory), reinterpret_cast<SquaredNorm::Segment*>(norm_segments),
          reinterpret_cast<AdamW::Segment*>(update_segments)};
}

void AdamWRule::norm() {
  const auto n = static_cast<int64_t>(layout_.segments.size());
  const Matrix partials(tables_.partials, DType::f64, 1, n);
  backend_.run(SquaredNorm{.segments = tables_.norm_segments,
                           .num_segments = n,
                           .gradients = Matrix(memory_.gradients, DType::f32, 1, layout_.elements),
                           .partials = partials});
  backend_.run(PrepareUpdate{.partials = partials,
                             .clip_norm = config_.clip_norm,
                             .beta1 = config_.beta1,
                             .beta2 = config_.beta2,
                             .state = state_});
}

void AdamWRule::update(int64_t unit) {
  const UnitRange& range = layout_.units[static_cast<size_t>(unit)];
  const auto slice = [&](std::byte* buffer, DType dtype) {
    return Matrix(buffer + range.offset * dtype_bytes(dtype), dtype, 1, range.elements);
  };
  backend_.run(AdamW{.segments = tables_.update_segments + range.first_tensor,
                     .num_segments = range.num_tensors,
                     .beta1 = config_.beta1,
                     .beta2 = config_.beta2,
                     .eps = config_.eps,
                     .weight_decay = config_.weight_decay,
                     .state = state_,
                     .gradients = slice(memory_.gradients, DType::f32),
                     .master = slice(memory_.master, DType::f32),
                     .exp_avg = slice(memory_.exp_avg, DType::f32),
                     .exp_avg_sq = slice(memory_.exp_avg_sq, DType::f32),
                     .weights = memory_.weights != nullptr ? slice(memory_.weights, weight_dtype_) : Matrix{}});
}

}  // namespace gptrain
