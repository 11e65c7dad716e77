#include "parallel/state_layout.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "model/record.h"
#include "schedule/allocator.h"

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

int64_t in_whole_pages(int64_t bytes) {
  return (bytes + StateLayout::range_multiple - 1) / StateLayout::range_multiple * StateLayout::range_multiple;
}

}  // namespace

StateLayout::StateLayout(const StateColumns& columns, const ParameterLayout& layout, const Holding& holding,
                         const std::vector<MemoryPlace>& places)
    : places_(places),
      ranges_(layout.units.size()),
      parts_(layout.units.size()),
      landings_(layout.units.size()),
      most_landed_(holding.most_landed) {
  place_experts(layout.units.size(), holding.order);
  const auto is_home = [&](size_t unit) { return places_[unit] == MemoryPlace::device; };
  constexpr StateColumn masters;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const int64_t bytes =
        holding.has_masters ? column_bytes(masters, unit_elements(masters, layout, holding.in_pieces, unit)) : 0;
    master_offsets_.push_back(is_home(unit) ? master_bytes_ : 0);
    if (is_home(unit)) {
      master_bytes_ += bytes;
    } else {
      ranges_[unit].bytes = align_up(bytes);
      away_masters_[places_[unit]] += align_up(bytes);
    }
  }
  for (const StateColumn& column : columns) {
    std::vector<int64_t>& offsets = offsets_.emplace_back();
    stays_.push_back(stays_home(column));
    int64_t elements = 0;  // elements at home
    for (size_t unit = 0; unit < layout.units.size(); ++unit) {
      const int64_t own = unit_elements(column, layout, holding.in_pieces, unit);
      if (is_home(unit) || stays_.back()) {
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
    if (is_home(unit)) continue;
    const int64_t elements = unit_elements(masters, layout, holding.in_pieces, unit);
    parts_[unit] = {in_whole_pages(ranges_[unit].bytes), in_whole_pages(elements * holding.weight_bytes),
                    in_whole_pages(elements * holding.gradient_bytes)};
    ranges_[unit].bytes = std::accumulate(parts_[unit].begin(), parts_[unit].end(), int64_t{0});
    if (ranges_[unit].bytes == 0) {
      places_[unit] = MemoryPlace::device;
      continue;
    }
    int64_t& used = away_bytes_[places_[unit]];
    ranges_[unit].offset = used;
    used += ranges_[unit].bytes;
  }
  for (const int64_t unit : holding.order)
    if (is_away(unit)) away_units_.push_back(unit);
  land();
  for (size_t unit = 0; unit < layout.units.size(); ++unit)
    if (is_away(static_cast<int64_t>(unit)) && !lands(static_cast<int64_t>(unit)))
      landings_[unit] = landing_bytes_ + ranges_[unit].offset;
}

// Gives units behind the places that were named, which are experts, those of their blocks.
void StateLayout::place_experts(size_t num_units, const std::vector<int64_t>& order) {
  const auto named = static_cast<int64_t>(places_.size());
  places_.resize(num_units, MemoryPlace::device);
  if (named == 0) return;
  int64_t block = 0;
  for (const int64_t unit : order) {
    if (unit >= named) places_[unit] = places_[block];
    block = unit;
  }
}

bool StateLayout::any_away() const {
  return std::any_of(places_.begin(), places_.end(), [](MemoryPlace place) { return place != MemoryPlace::device; });
}

// Places the ranges of units that follow each other beside each other.
void StateLayout::land() {
  std::vector<int64_t> away;
  std::copy_if(away_units_.begin(), away_units_.end(), std::back_inserter(away),
               [&](int64_t unit) { return lands(unit); });
  if (away.empty()) return;
  most_landed_ = std::min(most_landed_, std::ssize(away));
  home_bytes_ = in_whole_pages(home_bytes_);
  std::vector<Lifetime> lifetimes;
  for (size_t i = 0; i < away.size(); ++i)
    lifetimes.push_back({.first = static_cast<int32_t>(i),
                         .last = static_cast<int32_t>(static_cast<int64_t>(i) + most_landed_ - 1),
                         .bytes = ranges_[away[i]].bytes});
  const Placement placement = place_buffers(lifetimes);
  for (size_t i = 0; i < away.size(); ++i) landings_[away[i]] = placement.offsets[i];
  landing_bytes_ = placement.bytes;
}

void StateLayout::add_away(MemoryPlan& plan) const {
  for (size_t place = 0; place < num_memory_places; ++place) {
    MemoryPlan::ByClass& bytes = plan.on(static_cast<MemoryPlace>(place));
    bytes[MemoryClass::master] += away_masters_[place];
    bytes[MemoryClass::optimizer] += away_bytes_[place] - away_masters_[place];
  }
  for (size_t unit = 0; unit < parts_.size(); ++unit) {
    MemoryPlan::ByClass& bytes = plan.on(places_[unit]);
    const auto add = [&](MemoryClass c, AwayPart part) {
      const int64_t of_part = parts_[unit][part];
      bytes[c] += of_part;
      bytes[MemoryClass::optimizer] -= of_part;
    };
    add(MemoryClass::weights, AwayPart::weights);
    add(MemoryClass::gradients, AwayPart::gradients);
  }
}

AwayValue StateLayout::find_away(int64_t offset) const {
  const auto has = [&](int64_t unit) {
    return offset >= ranges_[unit].offset && offset < ranges_[unit].offset + ranges_[unit].bytes;
  };
  const int64_t unit = *std::find_if(away_units_.begin(), away_units_.end(), has);
  return {.unit = unit, .offset = offset - ranges_[unit].offset};
}

int64_t StateLayout::part_offset(AwayPart part, int64_t unit) const {
  const auto& parts = parts_[unit];
  return std::accumulate(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(part), int64_t{0});
}

int64_t StateLayout::offset(size_t column, int64_t unit) const {
  return (is_away(unit) && !stays_[column] ? landing_offset(unit) : 0) + offsets_[column][unit];
}

}  // namespace gptrain::parallel
