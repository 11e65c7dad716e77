#include "step/step_log.h"

#include <algorithm>

#include "base/amount.h"

namespace gptrain::inline step {
namespace {

// Calls body(event, number of times that it happens in the step).
template <typename Body>
void for_each_repeated(const StepLog& log, const Body& body) {
  std::vector<int64_t> times(log.blocks.size());
  for (const LoggedAction& action : log.actions) ++times[action.block];
  for (const EventBlock* block : {&log.before, &log.after}) {
    for (const Event& event : *block) body(event, 1);
  }
  for (size_t i = 0; i < log.blocks.size(); ++i) {
    for (const Event& event : log.blocks[i]) body(event, times[i]);
  }
}

template <size_t size>
size_t index_of(const std::array<std::string_view, size>& names, std::string_view name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

}  // namespace

OpTable op_table(const StepLog& log) {
  OpTable table{};
  for_each_repeated(log, [&](const Event& event, int64_t times) {
    if (event.kind != Event::Kind::op) return;
    const auto factor = static_cast<Flops>(times);
    table[index_of(op_names, event.name)] += {times, factor * event.model_flops, factor * event.executed_flops,
                                              factor * static_cast<Flops>(event.bytes_moved)};
  });
  return table;
}

LaneTraffic lane_traffic(const StepLog& log) {
  LaneTraffic table{};
  for_each_repeated(log, [&](const Event& event, int64_t times) {
    const size_t operation = index_of(operation_names, event.name);
    // A transfer counts at its sender, and a barrier sends nothing.
    if (event.kind != Event::Kind::collective || operation >= static_cast<size_t>(Operation::receive)) return;
    Traffic& traffic = table[event.channel.lane][event.channel.group][operation];
    traffic.calls += times;
    traffic.sent_bytes = (Amount(times) * event.sent_bytes + traffic.sent_bytes).value();
  });
  return table;
}

}  // namespace gptrain::step
