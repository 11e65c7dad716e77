#include "parallel/state_layout.h"

#include <algorithm>

#include "model/record.h"

namespace gptrain::inline parallel {
namespace {

// Returns the number of a unit's elements in a column. If ranks hold pieces, every rank reserves equally many elements:
// for the tensors before the unit's end as many as the first rank needs, for the tensors at its end as many as the last
// rank needs. Values of rows and columns are never cut into pieces. Units start at multiples of 256 bytes, as in the
// layout, or of state_block elements.
int64_t unit_elements(const StateColumn& column, const ParameterLayout& layout, bool in_pieces, size_t unit) {
  const UnitRange& range = layout.units[unit];
  if (column.granularity == StateGranularity::element) {
    const auto before = [&](size_t i) {
      if (i == layout.units.size()) return layout.held_elements(in_pieces);
      return in_pieces ? layout.units[i].piece_offset : layout.units[i].offset;
    };
    return before(unit + 1) - before(unit);
  }
  if (is_factored(column)) return factored_values(column, range.matrix_rows, range.matrix_cols);
  const int64_t of_all = is_of_last(column) ? range.elements - range.before_last : range.before_last;
  return std::min(of_all, in_pieces ? range.piece_elements() : range.elements);
}

}  // namespace

StateLayout::StateLayout(const StateColumns& columns, const ParameterLayout& layout, bool in_pieces,
                         const std::vector<MemoryPlace>& places)
    : places_(places), ranges_(layout.units.size()) {
  places_.resize(layout.units.size(), MemoryPlace::device);
  for (const StateColumn& column : columns) {
    std::vector<int64_t>& offsets = offsets_.emplace_back();
    int64_t elements = 0;  // elements of units at home
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      const int64_t own = unit_elements(column, layout, in_pieces, unit);
      if (places_[unit] == MemoryPlace::device) {
        offsets.push_back(home_bytes_ + column_bytes(column, elements));
        elements += own;
      } else {
        offsets.push_back(ranges_[unit].bytes);
        ranges_[unit].bytes += align_up(column_bytes(column, own));
      }
    }
    home_bytes_ += align_up(column_bytes(column, elements));
  }
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    if (places_[unit] == MemoryPlace::device) continue;
    int64_t& used = away_bytes_[static_cast<size_t>(places_[unit])];
    ranges_[unit].offset = used;
    used += ranges_[unit].bytes;
    landing_bytes_ = std::max(landing_bytes_, ranges_[unit].bytes);
  }
}

int64_t StateLayout::offset(size_t column, int64_t unit) const {
  return (is_away(unit) ? home_bytes_ : 0) + offsets_[column][static_cast<size_t>(unit)];
}

}  // namespace gptrain::parallel
