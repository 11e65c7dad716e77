#include "optim/step_agreement.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "model/record.h"

namespace gptrain::inline optim {
namespace {

template <typename T>
int64_t array_bytes(int64_t count) {
  return align_up(count * static_cast<int64_t>(sizeof(T)));
}

// RETURNS the segments whose squares this rank sums, in the order of tensors. If sums of gradients are away, each unit
// has its own buffer of gradients and its own range of partials. Writes to `firsts`, if not null, each unit's first
// segment, then their number. `whole`: the rank sums those of whole units.
std::vector<SquaredNorm::Segment> norm_segments(const ParameterStore& parameters, bool whole,
                                                std::vector<int64_t>* firsts = nullptr) {
  std::vector<SquaredNorm::Segment> segments;
  const bool away = parameters.sharding().gradients_away;
  const ModelSpec& spec = parameters.spec();
  const ParameterLayout& layout = parameters.layout();
  for (size_t tensor = 0; tensor < spec.tensors.size(); ++tensor) {
    const int64_t unit = spec.tensors[tensor].unit;
    const UnitRange& range = layout.units[unit];
    const UnitPiece piece = whole ? UnitPiece{0, range.elements} : parameters.piece(unit);
    const int64_t in_sums = whole ? range.offset : parameters.offset_in_summed(unit);
    if (firsts != nullptr && static_cast<int64_t>(tensor) == range.first_tensor)
      firsts->push_back(std::ssize(segments));
    if (piece.elements == 0) continue;  // a unit of another stage
    const int64_t start = layout.segments[tensor].offset - range.offset;
    for (const ShardBox& box : parameters.shards()[tensor].boxes) {
      const int64_t first = std::max(piece.first, start + box.local_offset);
      const int64_t end = std::min(piece.end(), start + box.local_offset + box.count());
      if (box.owned && first < end)
        segments.push_back({(away ? 0 : in_sums) + first - piece.first, end - first,
                            static_cast<int64_t>(tensor) - (away ? range.first_tensor : 0)});
    }
  }
  if (firsts != nullptr) firsts->push_back(std::ssize(segments));
  return segments;
}

}  // namespace

StepAgreement::Tables StepAgreement::tables_at(std::byte* memory, int64_t num_tensors, size_t num_segments) {
  const int64_t partials = array_bytes<double>(num_tensors + 1);
  return {reinterpret_cast<double*>(memory), reinterpret_cast<SquaredNorm::Segment*>(memory + partials),
          partials + array_bytes<SquaredNorm::Segment>(static_cast<int64_t>(num_segments))};
}

StepAgreement::StepAgreement(const UpdateContext& context, AgreementRules rules, std::byte* tables, RankGroups& groups,
                             SideQueue* copy_queue)
    : context_(context),
      rules_(std::move(rules)),
      num_tensors_(static_cast<int64_t>(context.parameters.spec().tensors.size())),
      groups_(groups),
      copy_queue_(groups.num_ranks(GroupKind::world) > 1 ? copy_queue : nullptr) {
  const std::vector<SquaredNorm::Segment> segments = norm_segments(context.parameters, rules_.whole, &first_segments_);
  num_segments_ = static_cast<int64_t>(segments.size());
  tables_ = tables_at(tables, num_tensors_, segments.size());
  context_.backend.upload(tables_.segments, segments.data(),
                          static_cast<int64_t>(segments.size() * sizeof(SquaredNorm::Segment)));
  put_stop(0);
  if (copy_queue_ == nullptr) return;
  wants_to_stop_ = copy_queue_->allocate_host(sizeof(double));
  new (wants_to_stop_->data()) double(0);
  copy_queue_->while_waiting([this] { look_for_stop(); });
}

int64_t StepAgreement::table_bytes(const ParameterStore& parameters, bool whole) {
  const auto num_tensors = static_cast<int64_t>(parameters.spec().tensors.size());
  return tables_at(nullptr, num_tensors, norm_segments(parameters, whole).size()).bytes;
}

void StepAgreement::put_stop(double count) {
  context_.backend.upload(tables_.partials + num_tensors_, &count, sizeof count);
}

void StepAgreement::look_for_stop() {
  if (!stop_wanted_ || !stop_wanted_()) return;
  std::atomic_ref(*reinterpret_cast<double*>(wants_to_stop_->data())).store(1);
}

bool StepAgreement::agree_to_stop(bool wanted) {
  put_stop(wanted ? 1 : 0);
  Lane& lane = groups_.lane(LaneKind::gradients);
  Communicator* const all = groups_.group(LaneKind::gradients, GroupKind::world);
  lane.wait(lane.all_reduce(all, tables_.partials + num_tensors_, 1, DType::f64));
  double count = 0;
  context_.backend.download(&count, stops(), sizeof count);
  context_.backend.synchronize();
  return count > 0;
}

void StepAgreement::measure(int64_t unit) {
  const ParameterStore& parameters = context_.parameters;
  const UnitRange& range = parameters.layout().units[unit];
  const int64_t first = first_segments_[unit];
  const int64_t end = first_segments_[static_cast<size_t>(unit) + 1];
  context_.backend.run(
      SquaredNorm{.segments = tables_.segments + first,
                  .num_segments = end - first,
                  .gradients = parameters.gradients_piece(unit),
                  .partials = Matrix(tables_.partials + range.first_tensor, DType::f64, 1, range.num_tensors)});
}

void StepAgreement::agree() {
  const Matrix partials(tables_.partials, DType::f64, 1, num_tensors_);
  if (context_.parameters.sharding().gradients_away) {
    // Units of other stages still have the sums of the last step.
    for (int64_t unit = 0; unit < context_.parameters.num_parameter_units(); ++unit)
      if (context_.parameters.layout().units[unit].elements == 0) measure(unit);
  } else {
    context_.backend.run(SquaredNorm{.segments = tables_.segments,
                                     .num_segments = num_segments_,
                                     .gradients = context_.parameters.summed_gradients(),
                                     .partials = partials});
  }
  const bool is_void = is_void_ && is_void_();
  if (is_void) {
    constexpr double not_finite = std::numeric_limits<double>::quiet_NaN();
    context_.backend.upload(tables_.partials, &not_finite, sizeof not_finite);
  }
  if (copy_queue_ != nullptr) {
    look_for_stop();
    if (is_void) std::atomic_ref(*reinterpret_cast<double*>(wants_to_stop_->data())).store(void_count);
    copy_queue_->copy_among_ops(tables_.partials + num_tensors_, wants_to_stop_->data(), sizeof(double));
  } else {
    put_stop(is_void ? void_count : stop_wanted_ && stop_wanted_() ? 1 : 0);
  }
  Lane& lane = groups_.lane(LaneKind::gradients);
  lane.all_reduce(groups_.group(LaneKind::gradients, GroupKind::world), tables_.partials, num_tensors_ + 1, DType::f64);
  lane.all_reduce(groups_.loss_group(), &context_.state->loss_sum, 1, DType::f64);
  for (const auto& [values, op] : rules_.statistics) {
    lane.all_reduce(groups_.group(LaneKind::gradients, GroupKind::world), values.data, values.count(), values.dtype,
                    op);
  }
  lane.wait_all();
  const QkClip* const qk_clip = rules_.qk_clip;
  context_.backend.run(
      PrepareUpdate{.partials = partials,
                    .clip_norm = rules_.clip_norm * std::sqrt(static_cast<double>(groups_.num_islands())),
                    .state = context_.state,
                    .loss_scale_window = rules_.loss_scale_window,
                    .scores = qk_clip != nullptr ? qk_clip->scores() : Matrix{},
                    .score_threshold = qk_clip != nullptr ? qk_clip->threshold() : 0});
  if (rules_.amax_history != nullptr) rules_.amax_history->roll();
}

}  // namespace gptrain::optim
