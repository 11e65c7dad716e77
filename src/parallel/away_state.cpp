#include "parallel/away_state.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>

#include "ops/op_event.h"

namespace gptrain::inline parallel {

std::vector<StoredPiece> stored_pieces(const ParameterStore& parameters) {
  std::vector<StoredPiece> pieces;
  const StateLayout& layout = parameters.state_layout();
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit)
    pieces.push_back(
        {fmt::format("optimizer state of unit {}", unit), layout.is_away(unit) ? layout.range_away(unit).bytes : 0});
  return pieces;
}

AwayState::AwayState(const ParameterStore& parameters, RankGroups& groups, WorkingFiles* files,
                     std::function<void()> before_use)
    : parameters_(parameters), groups_(groups), files_(files), before_use_(std::move(before_use)) {
  for (int64_t unit = 0; unit < parameters.num_parameter_units(); ++unit)
    if (parameters.state_layout().is_away(unit)) units_.push_back(unit);
}

void AwayState::move(int64_t unit, bool writes) {
  EventLog* const log = groups_.log();
  Event event = disk_event(writes, parameters_.state_layout().range_away(unit).bytes);
  event.beside_ops = false;
  event.start_seconds = files_ != nullptr ? steady_seconds() : 0;
  if (files_ != nullptr && writes) files_->write(static_cast<size_t>(unit), parameters_.landing(unit));
  if (files_ != nullptr && !writes) files_->read(static_cast<size_t>(unit), parameters_.landing(unit));
  event.end_seconds = files_ != nullptr ? steady_seconds() : 0;
  if (log != nullptr && log->on()) log->add(std::move(event));
}

void AwayState::fetch(int64_t unit) {
  if (unit == fetched_ || !parameters_.state_layout().is_away(unit)) return;
  before_use_();
  release();
  move(unit, false);
  fetched_ = unit;
}

void AwayState::release() {
  const int64_t unit = std::exchange(fetched_, -1);
  if (std::exchange(changed_, false)) move(unit, true);
}

void AwayState::clear() {
  before_use_();
  release();
  for (const int64_t unit : units_) {
    if (files_ != nullptr)
      std::memset(parameters_.landing(unit), 0, static_cast<size_t>(parameters_.state_layout().range_away(unit).bytes));
    move(unit, true);
  }
}

std::byte* AwayState::fetched(const void* address) {
  const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) - away_addresses);
  const StateLayout& layout = parameters_.state_layout();
  const auto after = std::upper_bound(units_.begin(), units_.end(), at, [&](int64_t offset, int64_t unit) {
    return offset < layout.range_away(unit).offset;
  });
  const int64_t unit = *std::prev(after);
  fetch(unit);
  return parameters_.landing(unit) + (at - layout.range_away(unit).offset);
}

}  // namespace gptrain::parallel
