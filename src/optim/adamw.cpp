#include "optim/adamw.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "model/record.h"
#include "model/spec/init.h"

namespace gptrain {
namespace {

template <typename T>
int64_t array_bytes(int64_t count) {
  return align_up(count * static_cast<int64_t>(sizeof(T)));
}

bool is_norm(const TensorSpec& tensor) { return tensor.norm_use != NormUse::no_norm; }

// Where elements of a box lie in the tensor, from the box's element `first` on.
IndexMap index_map(const TensorSpec& tensor, const ShardBox& box, int64_t first) {
  if (tensor.shape.size() == 1) return {.origin = box.offset[0], .first = first};
  const int64_t stride = tensor.shape[1];
  return {.origin = box.offset[0] * stride + box.offset[1], .first = first, .cols = box.shape[1], .stride = stride};
}

}  // namespace

// Offsets are from the unit's range in the update, or, where norms are updated apart, from where the others begin.
void AdamWRule::add_update_segments(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                    const ParameterStore& parameters, uint64_t seed, int64_t unit, bool norms,
                                    std::vector<AdamW::Segment>& segments) {
  const ParameterLayout& layout = parameters.layout();
  const UnitRange& range = layout.units[static_cast<size_t>(unit)];
  const UpdateRange updated = parameters.update_range(unit);
  const int64_t apart = parameters.sharding().pure && !norms ? parameters.norm_piece(unit).count : 0;
  for (int64_t i = range.first_tensor; i < range.first_tensor + range.num_tensors; ++i) {
    const TensorSpec& tensor = spec.tensors[static_cast<size_t>(i)];
    if (is_norm(tensor) != norms) continue;
    const int64_t start = layout.segments[static_cast<size_t>(i)].offset - range.offset;
    // What is not in a box is padding: weights and gradients are zero there, and no update is needed to keep them so.
    for (const ShardBox& box : shards[static_cast<size_t>(i)].boxes) {
      const int64_t in_unit = start + box.local_offset;
      const int64_t from = std::max(updated.first, in_unit);
      const int64_t to = std::min(updated.first + updated.elements, in_unit + box.count());
      if (from < to)
        segments.push_back({.offset = from - updated.first - apart,
                            .count = to - from,
                            .decay = tensor.decay ? 1 : 0,
                            .key = tensor_key(tensor, seed, RandomUse::update_rounding),
                            .map = index_map(tensor, box, from - in_unit)});
    }
  }
}

AdamWRule::Segments AdamWRule::make_segments(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                             const ParameterStore& parameters, uint64_t seed) {
  Segments segments;
  const ParameterLayout& layout = parameters.layout();
  for (int64_t unit = 0; unit < parameters.num_units(); ++unit) {
    const UnitRange& range = layout.units[static_cast<size_t>(unit)];
    const int64_t piece = parameters.piece_elements(unit);
    const int64_t piece_first = parameters.sharding().data_rank * piece;
    for (const bool norms : {true, false}) {
      segments.first_update.push_back(static_cast<int64_t>(segments.update.size()));
      add_update_segments(spec, shards, parameters, seed, unit, norms, segments.update);
    }
    for (int64_t tensor = range.first_tensor; tensor < range.first_tensor + range.num_tensors; ++tensor) {
      const int64_t start = layout.segments[static_cast<size_t>(tensor)].offset - range.offset;
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

AdamWRule::AdamWRule(const OptimizerConfig& config, int64_t loss_scale_window, uint64_t seed, const ModelSpec& spec,
                     const std::vector<TensorShard>& shards, const ParameterStore& parameters, std::byte* tables,
                     StepState* state, RankGroups& groups, Backend& backend, SideQueue* copies)
    : config_(config),
      loss_scale_window_(loss_scale_window),
      parameters_(parameters),
      num_tensors_(static_cast<int64_t>(spec.tensors.size())),
      state_(state),
      groups_(groups),
      backend_(backend),
      copies_(groups.num_ranks(GroupKind::world) > 1 ? copies : nullptr) {
  const Segments segments = make_segments(spec, shards, parameters, seed);
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
  return tables_at(nullptr, static_cast<int64_t>(spec.tensors.size()), make_segments(spec, shards, parameters, 0))
      .bytes;
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
  Lane& lane = groups_.lane(LaneKind::gradients);
  Communicator* const all = groups_.group(LaneKind::gradients, GroupKind::world);
  lane.wait(lane.all_reduce(all, tables_.partials + num_tensors_, 1, DType::f64));
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
  Lane& lane = groups_.lane(LaneKind::gradients);
  const auto group = [&](GroupKind kind) { return groups_.group(LaneKind::gradients, kind); };
  lane.all_reduce(group(GroupKind::world), tables_.partials, num_tensors_ + 1, DType::f64);
  // Ranks of a tensor group have the same loss.
  lane.all_reduce(group(GroupKind::copies), &state_->loss_sum, 1, DType::f64);
  lane.wait_all();
  backend_.run(PrepareUpdate{.partials = partials,
                             .clip_norm = config_.clip_norm,
                             .beta1 = config_.beta1,
                             .beta2 = config_.beta2,
                             .state = state_,
                             .loss_scale_window = loss_scale_window_});
}

void AdamWRule::run_update(const UpdateRange& range, int64_t first, int64_t elements, float* master, std::byte* weights,
                           int64_t first_segment, int64_t end_segment) {
  if (elements == 0) return;
  const auto row = [&](float* data) { return Matrix(data + first, DType::f32, 1, elements); };
  backend_.run(
      AdamW{.segments = tables_.update + first_segment,
            .num_segments = end_segment - first_segment,
            .beta1 = config_.beta1,
            .beta2 = config_.beta2,
            .eps = config_.eps,
            .weight_decay = config_.weight_decay,
            .state = state_,
            .gradients = row(range.gradients),
            .master = master != nullptr ? Matrix(master, DType::f32, 1, elements) : Matrix{},
            .exp_avg = row(range.exp_avg),
            .exp_avg_sq = row(range.exp_avg_sq),
            .weights = weights != nullptr ? Matrix(weights, parameters_.sharding().compute, 1, elements) : Matrix{}});
}

void AdamWRule::update(int64_t unit) {
  const UpdateRange range = parameters_.update_range(unit);
  const auto* const first_segments = first_update_.data() + 2 * unit;
  if (!parameters_.sharding().pure)
    return run_update(range, 0, range.elements, range.master, range.weights, first_segments[0], first_segments[2]);
  const NormPiece norms = parameters_.norm_piece(unit);
  run_update(range, 0, norms.count, norms.master, nullptr, first_segments[0], first_segments[1]);
  run_update(range, norms.count, range.elements - norms.count, nullptr,
             range.weights + norms.count * dtype_bytes(DType::bf16), first_segments[1], first_segments[2]);
}

}  // namespace gptrain
