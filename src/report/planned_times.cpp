#include "report/planned_times.h"

#include <algorithm>

namespace gptrain {

bool lies_within_a_node(const RunConfig& config, const Target& target, const Mesh& mesh, int64_t rank, GroupKind kind) {
  const int64_t per_node = target.ranks_per_node;
  const std::vector<int64_t> ranks = group_ranks(config, mesh, rank, kind);
  return per_node == 0 || ranks.front() / per_node == ranks.back() / per_node;
}

StepRates step_rates(const RunConfig& config, const Target& target, const Mesh& mesh, int64_t rank) {
  StepRates rates{.matrix_flops = config.precision.compute == DType::f32 ? target.f32_flops : target.bf16_flops,
                  .bytes_per_second = target.bytes_per_second,
                  .fp8_flops = target.fp8_flops};
  for (size_t kind = 0; kind < num_group_kinds; ++kind) {
    if (lies_within_a_node(config, target, mesh, rank, static_cast<GroupKind>(kind)))
      rates.link_bytes_per_second[kind] = target.link_bytes_per_second;
  }
  return rates;
}

double PlannedClock::seconds_of(const Event& event) const {
  if (event.kind == Event::Kind::wait) return 0;
  if (!rates_.are_known()) return 1e-6;
  if (event.kind == Event::Kind::collective) {
    const double rate = rates_.link_bytes_per_second[static_cast<size_t>(event.place.group)];
    const bool receives = event.name == operation_name(Operation::receive);
    return rate > 0 ? static_cast<double>(receives ? event.bytes_moved : event.sent_bytes) / rate : 0;
  }
  const bool in_fp8 = event.name == ScaledProduct::name && rates_.fp8_flops > 0;
  return std::max(static_cast<double>(event.executed_flops) / (in_fp8 ? rates_.fp8_flops : rates_.matrix_flops),
                  static_cast<double>(event.bytes_moved) / rates_.bytes_per_second);
}

std::pair<std::optional<PlannedClock::Work>, bool> PlannedClock::work_of(const Action& action) {
  constexpr int32_t gathers = -2;
  constexpr int32_t sums = -1;
  switch (action.kind) {
    case ActionKind::gather:
      return {Work{gathers, action.unit, -1}, true};
    case ActionKind::await_weights:
      return {Work{gathers, action.unit, -1}, false};
    case ActionKind::reduce:
      return {Work{sums, action.unit, -1}, true};
    case ActionKind::await_gradients:
      return {Work{sums, action.unit, -1}, false};
    default:
      break;
  }
  const std::optional<Transfer> transfer = transfer_of(action.kind);
  if (!transfer) return {};
  const int32_t kind = 2 * static_cast<int32_t>(transfer->operand) + (transfer->sends ? 1 : 0);
  return {Work{kind, action.unit, action.micro_batch}, transfer->begins};
}

TimeSpan PlannedClock::next(const Action* action, std::span<const Event> events, std::vector<TimeSpan>& times,
                            double not_before) {
  double* begun = nullptr;
  double awaited = not_before;
  if (action != nullptr) {
    const auto [work, begins] = work_of(*action);
    if (work && begins) begun = &ends_[*work];
    if (work && !begins) {
      const auto end = ends_.find(*work);
      if (end != ends_.end()) awaited = std::max(awaited, end->second);
      if (end != ends_.end() && transfer_of(action->kind)) ends_.erase(end);
    }
  }
  times.assign(events.size(), {});
  TimeSpan span{ops_, ops_};
  if (action != nullptr && action->kind == ActionKind::norm) ops_ = std::max(ops_, not_before);
  // The wait that the action is for is its first event, if it wrote one.
  const bool writes_wait = !events.empty() && events.front().kind == Event::Kind::wait;
  if (!writes_wait) ops_ = std::max(ops_, awaited);
  for (size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    double start = ops_;
    if (event.kind == Event::Kind::wait) {
      ops_ = std::max(ops_, event.awaits >= 0 ? times[static_cast<size_t>(event.awaits)].end_seconds : awaited);
      times[i] = {start, ops_};
      continue;
    }
    const double seconds = seconds_of(event);
    if (event.kind == Event::Kind::collective) {
      double& lane = lanes_[static_cast<size_t>(event.place.lane)];
      start = std::max(lane, ops_);
      lane = start + seconds;
      if (begun != nullptr) *begun = lane;
    } else if (event.kind == Event::Kind::copy) {
      start = event.beside_ops ? copies_ : std::max(ops_, copies_);
      copies_ = start + seconds;
      if (!event.beside_ops) ops_ = copies_;
    } else {
      ops_ = start + seconds;
    }
    times[i] = {start, start + seconds};
  }
  span.end_seconds = ops_;
  return span;
}

double PlannedClock::end() const {
  return std::max({ops_, copies_, *std::max_element(lanes_.begin(), lanes_.end())});
}

}  // namespace gptrain
