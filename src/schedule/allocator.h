// Places of buffers whose lifetimes are known beforehand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gptrain {

// Alive from action `first` to action `last`, both included; never, where first is negative.
struct Lifetime {
  int32_t first = -1;
  int32_t last = -1;
  int64_t bytes = 0;  // a multiple of memory_alignment

  bool operator==(const Lifetime&) const = default;
};

struct Placement {
  std::vector<int64_t> offsets;  // in bytes, by lifetime
  int64_t bytes = 0;             // of the arena that holds all
};

// Offsets at which no two lifetimes that share an action share a byte. Stretches of a schedule between which nothing is
// alive are placed by themselves, and equal ones alike.
Placement place(const std::vector<Lifetime>& lifetimes);

// The most bytes that are alive in one action: no placement takes less.
int64_t most_alive_bytes(const std::vector<Lifetime>& lifetimes);

// Empty if no two lifetimes share an action and a byte, and all lie within the arena; else the first two that do.
std::string check(const Placement& placement, const std::vector<Lifetime>& lifetimes);

}  // namespace gptrain
