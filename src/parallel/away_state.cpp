#include "parallel/away_state.h"

#include <cstring>

namespace gptrain::inline parallel {

void AwayState::fetch(int64_t unit) const {
  const StateLayout& layout = parameters_.state_layout();
  if (!layout.is_away(unit)) return;
  const auto [offset, bytes] = layout.range_away(unit);
  stores_[static_cast<size_t>(layout.place(unit))]->read(offset, parameters_.state_landing(), bytes);
}

void AwayState::put_back(int64_t unit) const {
  const StateLayout& layout = parameters_.state_layout();
  if (!layout.is_away(unit)) return;
  const auto [offset, bytes] = layout.range_away(unit);
  stores_[static_cast<size_t>(layout.place(unit))]->write(offset, parameters_.state_landing(), bytes);
}

void AwayState::clear() const {
  const StateLayout& layout = parameters_.state_layout();
  for (int64_t unit = 0; unit < parameters_.num_parameter_units(); ++unit) {
    if (!layout.is_away(unit)) continue;
    std::memset(parameters_.state_landing(), 0, static_cast<size_t>(layout.range_away(unit).bytes));
    put_back(unit);
  }
}

}  // namespace gptrain::parallel
