#include "optim/adamw.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "model/record.h"

namespace gptrain {
namespace {

template <typename T>
int64_t array_bytes(int64_t count) {
  return align_up(count * static_cast<int64_t>(sizeof(T)));
}

}  // namespace

AdamWRule::Segments AdamWRule::make_segments(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                             const ParameterStore& parameters) {
  Segments segments;
  const ParameterLayout& layout = parameters.layout();
  for (int64_t unit = 0; unit < parameters.num_units(); ++unit) {
    const UnitRange& range = layout.units[static_cast<size_t>(unit)];
    const UpdateRange updated = parameters.update_range(unit);
    const int64_t piece = parameters.piece_elements(unit);
    const int64_t piece_first = parameters.sharding().data_rank * piece;
    segments.first_update.push_back(static_cast<int64_t>(segments.update.size()));
    for (int64_t tensor = range.first_tensor; tensor < range.first_tensor + range.num_tensors; ++tensor) {
      const Segment& segment = layout.segments[static_cast<size_t>(tensor)];
      const int64_t start = segment.offset - range.offset;
      // Padding inside a tensor has zero gradients and weights, and an update keeps it so.
      const int64_t from = std::max(updated.first, start);
      const int64_t to = std::min(updated.first + updated.elements, start + segment.count);
      if (from < to)
        segments.update.push_back(
            {from - updated.first, to - from, spec.tensors[static_cast<size_t>(tensor)].decay ? 1 : 0});
      for (const ShardBox& box : shards[static_cast<size_t>(tensor)].boxes) {
        const int64_t first = std::max(piece_first, start + box.local_offset);
        const int64_t end = std::min(piece_first + piece, start + box.local_offset + box.count());
        if (box.owned && first < end)
          segments.norm.push_back({parameters.offset_in_summed(unit) + first - piece_first, end - first, tensor});
      }
    }
  }
  segments.first_update.push_back(static_cast<int64_t>(segments.update.size()));
  return segments;
}

AdamWRule::Tables AdamWRule::tables_at(std::byte* memory, int64_t num_tensors, const Segments& segments) {
  const int64_t norm = array_bytes<double>(num_tensors + 1);
  const int64_t update = norm + array_bytes<SquaredNorm::Segment>(static_cast<int64_t>(segments.norm.size()));
  return {reinterpret_cast<double*>(memory), reinterpret_cast<SquaredNorm::Segment*>(memory + norm),
          reinterpret_cast<AdamW::Segment*>(memory + update),
          update + array_bytes<AdamW::Segment>(static_cast<int64_t>(segments.update.size()))};
}

AdamWRule::AdamWRule(const OptimizerConfig& config, int64_t loss_scale_window, const ModelSpec& spec,
                     const std::vector<TensorShard>& shards, const ParameterStore& parameters, std::byte* tables,
                     StepState* state, RankGroups& groups, Backend& backend, SideQueue* copies)
    : config_(config),
      loss_scale_window_(loss_scale_window),
      parameters_(parameters),
      num_tensors_(static_cast<int64_t>(spec.tensors.size())),
      state_(state),
      groups_(groups),
      backend_(backend),
      copies_(groups.group(GroupKind::world) != nullptr ? copies : nullptr) {
  const Segments segments = make_segments(spec, shards, parameters);
  num_norm_segments_ = static_cast<int64_t>(segments.norm.size());
  first_update_ = segments.first_update;
  tables_ = tables_at(tables, num_tensors_, segments);
  backend_.upload(tables_.norm, segments.norm.data(),
                  static_cast<int64_t>(segments.norm.size() * sizeof(SquaredNorm::Segment)));
  backend_.upload(tables_.update, segments.update.data(),
                  static_cast<int64_t>(segments.update.size() * sizeof(AdamW::Segment)));
  put_stop(false);
  if (copies_ == nullptr) return;
  wants_to_stop_ = copies_->allocate_host(sizeof(double));
  new (wants_to_stop_->data()) double(0);
  copies_->while_waiting([this] { look_for_stop(); });
}

int64_t AdamWRule::table_bytes(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                               const ParameterStore& parameters) {
  return tables_at(nullptr, static_cast<int64_t>(spec.tensors.size()), make_segments(spec, shards, parameters)).bytes;
}

void AdamWRule::put_stop(bool wanted) {
  const double count = wanted ? 1 : 0;
  backend_.upload(tables_.partials + num_tensors_, &count, sizeof count);
}

void AdamWRule::look_for_stop() {
  if (!stop_wanted_ || !stop_wanted_()) return;
  std::atomic_ref(*reinterpret_cast<double*>(wants_to_stop_->data())).store(1);
}

bool AdamWRule::agree_to_stop(bool wanted) {
  put_stop(wanted);
  CollectiveStream& stream = groups_.stream();
  stream.wait(
      stream.all_reduce(groups_.device_group(GroupKind::world), tables_.partials + num_tensors_, 1, DType::f64));
  double count = 0;
  backend_.download(&count, stops(), sizeof count);
  backend_.synchronize();
  return count > 0;
}

void AdamWRule::norm() {
  const Matrix partials(tables_.partials, DType::f64, 1, num_tensors_);
  backend_.run(SquaredNorm{.segments = tables_.norm,
                           .num_segments = num_norm_segments_,
                           .gradients = parameters_.summed_gradients(),
                           .partials = partials});
  if (copies_ != nullptr) {
    look_for_stop();
    copies_->copy_among_ops(tables_.partials + num_tensors_, wants_to_stop_->data(), sizeof(double));
  } else {
    put_stop(stop_wanted_ && stop_wanted_());
  }
  CollectiveStream& stream = groups_.stream();
  stream.all_reduce(groups_.device_group(GroupKind::world), tables_.partials, num_tensors_ + 1, DType::f64);
  // Ranks of a tensor group have the same loss.
  stream.all_reduce(groups_.device_group(GroupKind::data), &state_->loss_sum, 1, DType::f64);
  stream.wait_all();
  backend_.run(PrepareUpdate{.partials = partials,
                             .clip_norm = config_.clip_norm,
                             .beta1 = config_.beta1,
                             .beta2 = config_.beta2,
                             .state = state_,
                             .loss_scale_window = loss_scale_window_});
}

void AdamWRule::update(int64_t unit) {
  const UpdateRange range = parameters_.update_range(unit);
  const int64_t first = first_update_[static_cast<size_t>(unit)];
  const auto row = [&](void* data, DType dtype) { return Matrix(data, dtype, 1, range.elements); };
  backend_.run(
      AdamW{.segments = tables_.update + first,
            .num_segments = first_update_[static_cast<size_t>(unit) + 1] - first,
            .beta1 = config_.beta1,
            .beta2 = config_.beta2,
            .eps = config_.eps,
            .weight_decay = config_.weight_decay,
            .state = state_,
            .gradients = row(range.gradients, DType::f32),
            .master = row(range.master, DType::f32),
            .exp_avg = row(range.exp_avg, DType::f32),
            .exp_avg_sq = row(range.exp_avg_sq, DType::f32),
            .weights = range.weights != nullptr ? row(range.weights, parameters_.sharding().compute) : Matrix{}});
}

}  // namespace gptrain
