// Places for values of a few units at a time, in memory that units share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace gptrain::inline parallel {

// The embedding and the head have slots of their own. Blocks share num_block_slots, so that as many blocks that follow
// each other, in either direction, have different ones. Experts of blocks, units behind the head, share as many others.
class UnitSlots {
 public:
  static constexpr size_t num_block_slots = 3;

  UnitSlots() = default;
  // `bytes`: by unit, the bytes of its values. `head`: number of the head's unit.
  UnitSlots(const std::vector<int64_t>& bytes, size_t head) : slots_(bytes.size()) {
    std::vector<int64_t> sizes(2 * num_block_slots + 2);
    for (size_t unit = 0; unit < bytes.size(); ++unit) {
      const size_t of_blocks = unit % num_block_slots;
      slots_[unit] = unit == 0 ? 0 : unit == head ? 1 : of_blocks + 2 + (unit > head ? num_block_slots : 0);
      sizes[slots_[unit]] = std::max(sizes[slots_[unit]], bytes[unit]);
    }
    starts_.resize(sizes.size());
    std::exclusive_scan(sizes.begin(), sizes.end(), starts_.begin(), int64_t{0});
    bytes_ = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  }

  size_t slot(int64_t unit) const { return slots_[unit]; }
  int64_t offset(int64_t unit) const { return starts_[slot(unit)]; }
  size_t num_slots() const { return starts_.size(); }
  int64_t bytes() const { return bytes_; }  // bytes of all slots

 private:
  std::vector<size_t> slots_;    // by unit
  std::vector<int64_t> starts_;  // by slot
  int64_t bytes_ = 0;
};

}  // namespace gptrain::parallel
