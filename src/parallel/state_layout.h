// Offsets of the values of an optimizer's columns, by unit and place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/spec/layout.h"
#include "parallel/memory.h"
#include "parallel/state_columns.h"

namespace gptrain::inline parallel {

// The rank's buffer of state has, one after the other, the columns of all units that are at home, and then the landing
// area. A unit that is away has all its columns together in one range of its place; the landing area holds this range
// while an update changes it.
class StateLayout {
 public:
  // `in_pieces`: the rank holds one piece of each unit. `places`: by unit, MemoryPlace::device for a unit at home;
  // empty: all are at home.
  StateLayout(const StateColumns& columns, const ParameterLayout& layout, bool in_pieces,
              const std::vector<MemoryPlace>& places);

  // Returns the bytes of the rank's buffer.
  int64_t buffer_bytes() const { return home_bytes_ + landing_bytes_; }
  // Returns the offset of a column's values for a unit in that buffer.
  int64_t offset(size_t column, int64_t unit) const;

  bool is_away(int64_t unit) const { return place(unit) != MemoryPlace::device; }
  MemoryPlace place(int64_t unit) const { return places_[static_cast<size_t>(unit)]; }
  // Returns the bytes that units use in a place other than home.
  int64_t bytes_away(MemoryPlace place) const { return away_bytes_[static_cast<size_t>(place)]; }
  struct Range {
    int64_t offset, bytes;
  };
  // Returns the range of a unit in its place. REQUIRES: the unit is away.
  Range range_away(int64_t unit) const { return ranges_[static_cast<size_t>(unit)]; }
  int64_t landing_offset() const { return home_bytes_; }

 private:
  std::vector<MemoryPlace> places_;            // by unit
  std::vector<std::vector<int64_t>> offsets_;  // by column and unit: from the start of its buffer or its range
  std::vector<Range> ranges_;                  // by unit
  std::array<int64_t, num_memory_places> away_bytes_{};
  int64_t home_bytes_ = 0, landing_bytes_ = 0;
};

}  // namespace gptrain::parallel
