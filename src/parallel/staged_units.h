// Memory on the host of a GPU through which gradients and weights pass between the device and updates on the host.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/record.h"

namespace gptrain::inline parallel {

// Bytes of the values of one unit that pass.
struct StagedParts {
  int64_t gradients = 0;
  int64_t weights = 0;
  int64_t norms = 0;  // f32 norms, stored separately from the weights

  int64_t bytes() const { return gradients + weights + norms; }
};

// Three slots, which units use in turn: one is filled, one updated, one emptied.
class StagedUnits {
 public:
  static constexpr size_t num_slots = 3;

  StagedUnits() = default;
  // `parts`: by unit. `order`: units in the order of their updates.
  StagedUnits(std::vector<StagedParts> parts, const std::vector<int64_t>& order)
      : parts_(std::move(parts)), slots_(parts_.size()) {
    size_t next = 0;
    for (const int64_t unit : order) {
      const StagedParts& own = parts_[unit];
      if (own.bytes() == 0) continue;
      slots_[unit] = next++ % num_slots;
      slot_bytes_ = std::max(slot_bytes_, align_up(own.gradients) + align_up(own.weights) + align_up(own.norms));
    }
  }

  int64_t bytes() const { return static_cast<int64_t>(num_slots) * slot_bytes_; }
  const StagedParts& parts(int64_t unit) const { return parts_[unit]; }
  size_t slot(int64_t unit) const { return slots_[unit]; }
  // Return the places of a unit's parts in memory that starts at `base`.
  std::byte* gradients(std::byte* base, int64_t unit) const {
    return base + static_cast<int64_t>(slots_[unit]) * slot_bytes_;
  }
  std::byte* weights(std::byte* base, int64_t unit) const {
    return gradients(base, unit) + align_up(parts_[unit].gradients);
  }
  std::byte* norms(std::byte* base, int64_t unit) const { return weights(base, unit) + align_up(parts_[unit].weights); }

 private:
  std::vector<StagedParts> parts_;
  std::vector<size_t> slots_;  // by unit
  int64_t slot_bytes_ = 0;
};

}  // namespace gptrain::parallel
