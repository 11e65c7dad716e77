#include "schedule/offload.h"

#include <algorithm>
#include <utility>

#include "base/enum_array.h"

namespace gptrain::inline schedule {
namespace {

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
    schedule_.actions.reserve(old_.size() + insertions_.size());
    auto next = insertions_.begin();
    for (size_t i = 0; i < old_.size(); ++i) {
      for (; next != insertions_.end() && next->before == i; ++next) add(*next);
      Action& action = schedule_.actions.emplace_back(old_[i]);
      for (int32_t& buffer : action.buffers) buffer = buffer < 0 ? -1 : moved_[buffer];
    }
  }

 private:
  // The record of one unit and micro-batch, from its forward to its backward pass.
  struct Record {
    size_t forward = 0;                                // index in old_ of the forward action
    size_t first_read = 0;                             // index in old_ of the first action of the backward pass
    EnumArray<Operand, int32_t, num_operands> away{};  // the record's buffers until the copy to the host ends
    EnumArray<Operand, int32_t, num_operands> back{};  // the record's buffers from the beginning of the copy back
  };
  // A new action and the index of the action before which it is inserted.
  struct Insertion {
    size_t before;  // index in old_ of the action that follows
    ActionKind kind;
    size_t record;
    bool awaits_older;  // awaits a copy that begins at an earlier index
  };

  void find_records() {
    std::vector<std::vector<size_t>> open(schedule_.options.units.size());  // by unit: records without first_read
    starts_ = first_actions_of_passes(old_);
    pass_of_.resize(old_.size());
    size_t begun = 0;
    for (size_t i = 0; i < old_.size(); ++i) {
      const Action& action = old_[i];
      const bool back = is_backward(action.kind);
      begun += begun < starts_.size() && starts_[begun] == i ? 1 : 0;
      pass_of_[i] = begun;
      if (!is_unit_pass(action.kind) || !schedule_.traits(action.unit).offload.any()) continue;
      std::vector<size_t>& of_unit = open[action.unit];
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

  void find_places() {
    for (size_t i = 0; i < records_.size(); ++i) {
      const Record& record = records_[i];
      const UnitOffload& offload = schedule_.traits(old_[record.forward].unit).offload;
      const size_t left = record.forward + 1;
      const size_t read_in = pass_of_[record.first_read] - 1;  // index in starts_
      const size_t fetched =
          std::max(left, starts_[read_in - std::min(static_cast<size_t>(offload.comes_ahead), read_in)]);
      const size_t free_in = pass_of_[record.forward] + static_cast<size_t>(offload.leaves_for);
      const size_t gone = free_in < starts_.size() ? std::min(starts_[free_in], fetched) : fetched;
      insertions_.push_back({left, ActionKind::offload, i, false});
      insertions_.push_back({gone, ActionKind::await_offloaded, i, gone > left});
      insertions_.push_back({fetched, ActionKind::fetch, i, false});
      insertions_.push_back({record.first_read, ActionKind::await_fetched, i, record.first_read > fetched});
    }
    // Before one action, older copies are awaited first, which frees their memory for the copies that begin there.
    std::stable_sort(insertions_.begin(), insertions_.end(), [](const Insertion& a, const Insertion& b) {
      return std::pair(a.before, !a.awaits_older) < std::pair(b.before, !b.awaits_older);
    });
  }

  int32_t copy_of(int32_t buffer) {
    const Buffer copy = schedule_.buffers[buffer];
    schedule_.buffers.push_back({.kind = copy.kind, .micro_batch = copy.micro_batch, .unit = copy.unit});
    return static_cast<int32_t>(schedule_.buffers.size()) - 1;
  }

  void begin_record(Record& record) {
    const Action& forward = old_[record.forward];
    record.away.fill(-1);
    for (const Operand operand : record_operands) {
      if (record_of(schedule_.traits(forward.unit)).contains(operand)) record.away[operand] = forward[operand];
    }
    record.away[Operand::host] = static_cast<int32_t>(schedule_.buffers.size());
    schedule_.buffers.push_back(
        {.kind = BufferKind::offloaded, .micro_batch = forward.micro_batch, .unit = forward.unit});
  }

  void bring_back(Record& record) {
    record.back = record.away;
    for (const Operand operand : record_operands) {
      int32_t& buffer = record.back[operand];
      if (buffer < 0) continue;
      const auto was = static_cast<size_t>(buffer);
      buffer = copy_of(buffer);
      moved_[was] = buffer;
    }
  }

  void add(const Insertion& insertion) {
    Record& record = records_[insertion.record];
    const Action& forward = old_[record.forward];
    if (insertion.kind == ActionKind::offload) begin_record(record);
    if (insertion.kind == ActionKind::fetch) bring_back(record);
    const bool away = insertion.kind == ActionKind::offload || insertion.kind == ActionKind::await_offloaded;
    Action& action = schedule_.actions.emplace_back();
    action = {.kind = insertion.kind, .micro_batch = forward.micro_batch, .unit = forward.unit};
    action.buffers = away ? record.away : record.back;
  }

  Schedule& schedule_;
  const std::vector<Action> old_;
  std::vector<Record> records_;
  std::vector<size_t> starts_;   // indices in old_ of the first actions of passes, rising
  std::vector<size_t> pass_of_;  // by old action: number of passes that have begun
  std::vector<Insertion> insertions_;
  std::vector<int32_t> moved_;  // by old buffer: the buffer that has its content now
};

}  // namespace

bool is_unit_pass(ActionKind kind) { return kind == ActionKind::forward || is_backward(kind); }

bool is_backward(ActionKind kind) {
  switch (kind) {
    case ActionKind::loss:
    case ActionKind::recompute_output:
    case ActionKind::recompute:
    case ActionKind::backward_input:
    case ActionKind::backward_weight:
    case ActionKind::backward:
      return true;
    default:
      return false;
  }
}

std::vector<size_t> first_actions_of_passes(const std::vector<Action>& actions) {
  std::vector<size_t> starts;
  const auto is_same = [](const Action& a, const Action& b) {
    return a.unit == b.unit && a.micro_batch == b.micro_batch && is_backward(a.kind) == is_backward(b.kind);
  };
  for (size_t i = 0; i < actions.size(); ++i)
    if (is_unit_pass(actions[i].kind) && (starts.empty() || !is_same(actions[starts.back()], actions[i])))
      starts.push_back(i);
  return starts;
}

void add_offloading(Schedule& schedule) {
  const bool any = std::any_of(schedule.options.units.begin(), schedule.options.units.end(),
                               [](const UnitTraits& unit) { return unit.offload.any(); });
  if (any) Offloading(schedule).run();
}

EvenOffload spread_evenly(const Stages& stages, int64_t count) {
  std::vector<int32_t> blocks;
  for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk) {
    if (stages.stage_of_chunk(chunk) != stages.stage) continue;
    for (int32_t unit = stages.first_unit(chunk); unit < stages.end_unit(chunk); ++unit)
      if (unit > 0 && unit + 1 < stages.num_layers()) blocks.push_back(unit);
  }
  const auto all = static_cast<int64_t>(blocks.size());
  count = std::min(count, all);
  EvenOffload even;
  if (count <= 0) return even;
  // Spread over all blocks but the last, so that the copy of the last record ends before the last block saves its own.
  const int64_t spread = count < all ? all - 1 : all;
  for (int64_t i = 0; i < count; ++i) even.units.push_back(blocks[i * spread / count]);
  const auto distance = static_cast<int32_t>(spread / count);
  even.offload = {OffloadedPart::record, distance, (distance + 1) / 2};
  return even;
}

}  // namespace gptrain::schedule
