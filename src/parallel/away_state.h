// Optimizer state of units that are not at home (StateLayout), in places that ops do not reach.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "parallel/memory.h"
#include "parallel/parameters.h"

namespace gptrain::inline parallel {

// Memory of one place, read and written in ranges of bytes.
class PlaceStore {
 public:
  virtual ~PlaceStore() = default;
  virtual void read(int64_t offset, std::byte* to, int64_t bytes) = 0;
  virtual void write(int64_t offset, const std::byte* from, int64_t bytes) = 0;
};
using PlaceStores = std::array<PlaceStore*, num_memory_places>;  // by place; null: no unit is there

class AwayState {
 public:
  // Borrows all. REQUIRES: the host can read and write the buffer of state, and each unit's place has a store.
  AwayState(const ParameterStore& parameters, const PlaceStores& stores) : parameters_(parameters), stores_(stores) {}

  // Read the unit's state into the landing area, and write it back; no effect if the unit is at home.
  void fetch(int64_t unit) const;
  void put_back(int64_t unit) const;
  // Zeroes the state of all units that are away.
  void clear() const;

 private:
  const ParameterStore& parameters_;
  const PlaceStores stores_;
};

}  // namespace gptrain::parallel
