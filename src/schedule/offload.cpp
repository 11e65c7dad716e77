#include "schedule/offload.h"

#include <algorithm>
#include <utility>

namespace gptrain {
namespace {

bool is_backward(ActionKind kind) {
  switch (kind) {
    case ActionKind::loss:
    case ActionKind::forward_again:
    case ActionKind::recompute:
    case ActionKind::backward_input:
    case ActionKind::backward_weight:
    case ActionKind::backward:
      return true;
    default:
      return false;
  }
}

class Offloading {
 public:
  explicit Offloading(Schedule& schedule) : schedule_(schedule), old_(std::move(schedule.actions)) {
    schedule_.actions = {};
  }

  void run() {
    find_records();
    find_places();
    moved_.resize(schedule_.buffers.size());
    for (size_t i = 0; i < moved_.size(); ++i) moved_[i] = static_cast<int32_t>(i);
    schedule_.actions.reserve(old_.size() + places_.size());
    auto next = places_.begin();
    for (size_t i = 0; i < old_.size(); ++i) {
      for (; next != places_.end() && next->before == i; ++next) add(*next);
      Action& action = schedule_.actions.emplace_back(old_[i]);
      for (int32_t& buffer : action.buffers) buffer = buffer < 0 ? -1 : moved_[static_cast<size_t>(buffer)];
    }
  }

 private:
  // Of one unit and micro-batch.
  struct Record {
    size_t forward = 0;                // the action that leaves it
    size_t first_read = 0;             // the first one of the backward pass that reads it
    std::array<int32_t, num_operands> away{};  // buffers, while it is copied to the host
    std::array<int32_t, num_operands> back{};  // while it comes back, and then
  };
  struct Place {
    size_t before;  // which of the old actions
    ActionKind kind;
    size_t record;
  };

  void find_records() {
    std::vector<std::vector<size_t>> open(schedule_.options.units.size());  // by unit: left, and not read yet
    pass_of_.resize(old_.size());
    for (size_t i = 0; i < old_.size(); ++i) {
      const Action& action = old_[i];
      const bool back = is_backward(action.kind);
      const bool is_pass = back || action.kind == ActionKind::forward;
      if (is_pass && (starts_.empty() || !is_same_pass(old_[starts_.back()], action))) starts_.push_back(i);
      pass_of_[i] = starts_.size();
      if (!is_pass || !schedule_.traits(action.unit).offloaded) continue;
      std::vector<size_t>& of_unit = open[static_cast<size_t>(action.unit)];
      if (!back) {
        of_unit.push_back(records_.size());
        records_.push_back({.forward = i});
        continue;
      }
      const auto found = std::find_if(of_unit.begin(), of_unit.end(), [&](size_t record) {
        return old_[records_[record].forward].micro_batch == action.micro_batch;
      });
      if (found == of_unit.end()) continue;
      records_[*found].first_read = i;
      of_unit.erase(found);
    }
  }

  static bool is_same_pass(const Action& a, const Action& b) {
    return a.unit == b.unit && a.micro_batch == b.micro_batch && is_backward(a.kind) == is_backward(b.kind);
  }

  // Blocks of the stage for each one that is offloaded.
  size_t distance() const {
    size_t blocks = 0, offloaded = 0;
    for (int32_t unit = 0; unit < schedule_.num_units(); ++unit) {
      if (!schedule_.options.stages.runs(unit)) continue;
      blocks += schedule_.traits(unit).kind == UnitKind::block ? 1 : 0;
      offloaded += schedule_.traits(unit).offloaded ? 1 : 0;
    }
    return blocks == offloaded ? 1 : (blocks - 1) / offloaded;
  }

  void find_places() {
    const size_t to_leave = distance();
    const size_t ahead = (to_leave + 1) / 2;
    for (size_t i = 0; i < records_.size(); ++i) {
      const Record& record = records_[i];
      const size_t left = record.forward + 1;
      const size_t read_in = pass_of_[record.first_read] - 1;  // of starts_
      const size_t fetched = std::max(left, starts_[read_in - std::min(ahead, read_in)]);
      const size_t free_in = pass_of_[record.forward] + to_leave;
      const size_t gone = free_in < starts_.size() ? std::min(starts_[free_in], fetched) : fetched;
      places_.push_back({left, ActionKind::offload, i});
      places_.push_back({gone, ActionKind::await_offloaded, i});
      places_.push_back({fetched, ActionKind::fetch, i});
      places_.push_back({record.first_read, ActionKind::await_fetched, i});
    }
    // Before one action: what is awaited comes before what begins, but for a record's own.
    std::stable_sort(places_.begin(), places_.end(),
                     [](const Place& a, const Place& b) { return a.before < b.before; });
  }

  int32_t copy_of(int32_t buffer) {
    const Buffer copy = schedule_.buffers[static_cast<size_t>(buffer)];
    schedule_.buffers.push_back({.kind = copy.kind, .micro_batch = copy.micro_batch, .unit = copy.unit});
    return static_cast<int32_t>(schedule_.buffers.size()) - 1;
  }

  void begin_record(Record& record) {
    const Action& forward = old_[record.forward];
    record.away.fill(-1);
    for (const Operand operand : record_operands) {
      if (record_of(schedule_.traits(forward.unit)).contains(operand))
        record.away[static_cast<size_t>(operand)] = forward[operand];
    }
    record.away[static_cast<size_t>(Operand::host)] = static_cast<int32_t>(schedule_.buffers.size());
    schedule_.buffers.push_back(
        {.kind = BufferKind::offloaded, .micro_batch = forward.micro_batch, .unit = forward.unit});
  }

  void bring_back(Record& record) {
    record.back = record.away;
    for (const Operand operand : record_operands) {
      int32_t& buffer = record.back[static_cast<size_t>(operand)];
      if (buffer < 0) continue;
      const auto was = static_cast<size_t>(buffer);
      buffer = copy_of(buffer);
      moved_[was] = buffer;
    }
  }

  void add(const Place& place) {
    Record& record = records_[place.record];
    const Action& forward = old_[record.forward];
    if (place.kind == ActionKind::offload) begin_record(record);
    if (place.kind == ActionKind::fetch) bring_back(record);
    const bool away = place.kind == ActionKind::offload || place.kind == ActionKind::await_offloaded;
    Action& action = schedule_.actions.emplace_back();
    action = {.kind = place.kind, .micro_batch = forward.micro_batch, .unit = forward.unit};
    action.buffers = away ? record.away : record.back;
  }

  Schedule& schedule_;
  const std::vector<Action> old_;
  std::vector<Record> records_;
  std::vector<size_t> starts_;   // first actions of the passes of units, in their order
  std::vector<size_t> pass_of_;  // by old action: passes that have begun
  std::vector<Place> places_;
  std::vector<int32_t> moved_;  // by old buffer: where its content is now
};

}  // namespace

OperandSet record_of(const UnitTraits& unit) {
  const auto use = [&](UnitPass pass) -> const OperandUse& { return unit.uses[static_cast<size_t>(pass)]; };
  OperandSet record;
  for (const Operand operand : record_operands) {
    const bool is_made_again = unit.recomputed && use(UnitPass::recompute).writes.contains(operand);
    const bool is_read = (unit.recomputed && use(UnitPass::recompute).reads.contains(operand)) ||
                         use(UnitPass::backward_input).reads.contains(operand) ||
                         use(UnitPass::backward_weight).reads.contains(operand);
    const OperandUse& forward = use(UnitPass::forward);
    const bool is_there = forward.reads.contains(operand) || forward.writes.contains(operand);
    if (is_there && is_read && !is_made_again) record.add(operand);
  }
  return record;
}

void add_offloading(Schedule& schedule) {
  const bool any = std::any_of(schedule.options.units.begin(), schedule.options.units.end(),
                               [](const UnitTraits& unit) { return unit.offloaded; });
  if (any) Offloading(schedule).run();
}

std::vector<int32_t> offloaded_units(const Stages& stages, int64_t count) {
  std::vector<int32_t> blocks;
  for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk) {
    if (stages.stage_of_chunk(chunk) != stages.stage) continue;
    for (int32_t unit = stages.first_unit(chunk); unit < stages.end_unit(chunk); ++unit)
      if (unit > 0 && unit + 1 < stages.num_units()) blocks.push_back(unit);
  }
  const auto all = static_cast<int64_t>(blocks.size());
  count = std::min(count, all);
  std::vector<int32_t> chosen;
  // The last record is to leave before the last block leaves its own.
  const int64_t spread = count < all ? all - 1 : all;
  for (int64_t i = 0; i < count; ++i) chosen.push_back(blocks[static_cast<size_t>(i * spread / count)]);
  return chosen;
}

}  // namespace gptrain
