// Offsets of f32 master weights and of the values of an optimizer's columns, by unit and place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/enum_array.h"
#include "model/spec/layout.h"
#include "parallel/memory.h"
#include "parallel/state_columns.h"

namespace gptrain::inline parallel {

// Parts of the range of a unit that is away, in their order. Each is read and written by itself.
enum class AwayPart : uint8_t { state, weights, gradients };  // state: masters and columns
constexpr size_t num_away_parts = 3;

// A value in the range of a unit that is away.
struct AwayValue {
  int64_t unit, offset;
};

// A unit is at home if its optimizer state lies where updates run (MemoryPlace::device), and away if it lies on the
// host or on disk. A rank's buffer of masters, and its buffer of state, have the values of all units that are at home.
// A unit that is away has its masters and columns together in one range of its place, except columns that stay home
// (stays_home).
// Behind them the range has the weights and the gradients that the unit's update writes and reads, if these are away.
// The buffer of state ends with the landing area, which holds the ranges of a few units on disk at a time while updates
// change them: any most_landed() units that follow each other (Holding::order) have disjoint places there.
// The ranges of units on the host follow the buffer.
class StateLayout {
 public:
  static constexpr int64_t range_multiple = 4096;  // bytes
  static constexpr int64_t least_landed = 3;       // units: one is read, one updated, one written

  struct Holding {
    bool in_pieces = false;    // the rank holds one piece of each unit
    bool has_masters = false;  // beside the weights
    // Bytes of a weight and of a gradient of units that are away; 0: they lie elsewhere.
    int64_t weight_bytes = 0, gradient_bytes = 0;
    // All units in the order of their updates; may be empty if all are at home.
    std::vector<int64_t> order = {};
    int64_t most_landed = least_landed;  // at least that
  };
  // `places`: by unit, MemoryPlace::device for a unit at home; empty: all are at home. Experts that are units of their
  // own are where their block is.
  StateLayout(const StateColumns& columns, const ParameterLayout& layout, const Holding& holding,
              const std::vector<MemoryPlace>& places);

  // Return the bytes of the rank's buffers of masters and of state.
  int64_t master_bytes() const { return master_bytes_; }
  int64_t buffer_bytes() const { return home_bytes_ + landing_bytes_; }
  // Return the parts of the buffer of state: values at home, then the landing area.
  int64_t home_bytes() const { return home_bytes_; }
  int64_t landing_bytes() const { return landing_bytes_; }
  // Returns the offset of a column's values for a unit in the buffer of state.
  int64_t offset(size_t column, int64_t unit) const;
  // Returns the offset of a unit's masters in their buffer. REQUIRES: the unit is at home.
  int64_t master_offset(int64_t unit) const { return master_offsets_[unit]; }

  // Returns whether part of the unit's state is in another place. False if it has no state there.
  bool is_away(int64_t unit) const { return place(unit) != MemoryPlace::device; }
  bool any_away() const;
  // Returns the units that are away, in the order of their updates.
  const std::vector<int64_t>& away_units() const { return away_units_; }
  MemoryPlace place(int64_t unit) const { return places_[unit]; }
  // Adds the bytes that units use in places other than home.
  void add_away(MemoryPlan& plan) const;
  struct Range {
    int64_t offset, bytes;
  };
  // Returns the range of a unit in its place, which begins with the masters. REQUIRES: the unit is away.
  Range range_away(int64_t unit) const { return ranges_[unit]; }
  // Returns the unit that is away whose range has the byte at `offset` of all ranges of its place, and the byte's
  // offset in the range. REQUIRES: all units that are away have the same place.
  AwayValue find_away(int64_t offset) const;
  // Returns the bytes of a part of the unit's range, a multiple of range_multiple.
  int64_t part_bytes(AwayPart part, int64_t unit) const { return parts_[unit][part]; }
  // Returns the start of a part in the unit's range.
  int64_t part_offset(AwayPart part, int64_t unit) const;
  // Returns the offset of the unit's range from the start of the buffer of state. A unit on disk: a place in the
  // landing area, which has the range only while it is landed. A unit on the host: behind the buffer, always.
  int64_t landing_offset(int64_t unit) const { return home_bytes_ + landings_[unit]; }
  // Returns whether the unit's range is read before its update and written after it.
  bool lands(int64_t unit) const { return place(unit) == MemoryPlace::disk; }
  // Returns how many units on disk have disjoint places in the landing area at a time, if they follow each other.
  int64_t most_landed() const { return most_landed_; }

 private:
  void place_experts(size_t num_units, const std::vector<int64_t>& order);
  void land();

  std::vector<MemoryPlace> places_;            // by unit
  std::vector<std::vector<int64_t>> offsets_;  // by column and unit: from the start of its buffer or its range
  std::vector<bool> stays_;                    // by column: at home for all units
  std::vector<int64_t> away_units_;
  std::vector<int64_t> master_offsets_;  // by unit
  std::vector<Range> ranges_;            // by unit
  std::vector<EnumArray<AwayPart, int64_t, num_away_parts>> parts_;
  std::vector<int64_t> landings_;  // by unit: from the start of the landing area
  EnumArray<MemoryPlace, int64_t, num_memory_places> away_bytes_{}, away_masters_{};
  int64_t most_landed_;
  int64_t master_bytes_ = 0, home_bytes_ = 0, landing_bytes_ = 0;
};

// Returns true if a column's values stay in memory: those of vectors, rows and columns are few, and ops read them for
// all units at once.
constexpr bool stays_home(const StateColumn& column) {
  return is_factored(column) || column.granularity == StateGranularity::element_of_vectors;
}

}  // namespace gptrain::parallel
