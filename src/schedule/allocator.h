// Places buffers whose lifetimes are known in one arena.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gptrain::inline schedule {

// A buffer that is alive from action `first` to action `last`, both included. Negative `first`: it is never alive.
struct Lifetime {
  int32_t first = -1;
  int32_t last = -1;
  int64_t bytes = 0;  // a multiple of memory_alignment

  bool operator==(const Lifetime&) const = default;
};

struct Placement {
  std::vector<int64_t> offsets;  // bytes from the start of the arena, by lifetime
  int64_t bytes = 0;             // size of the arena
};

// Returns offsets at which no two lifetimes that share an action share a byte. Where nothing is alive at some point,
// the parts of the schedule before and after are placed independently; equal parts get equal placements.
Placement place_buffers(const std::vector<Lifetime>& lifetimes);

// Returns the largest sum of bytes alive in one action, which is a lower bound of Placement::bytes.
int64_t most_alive_bytes(const std::vector<Lifetime>& lifetimes);

// Returns "" if no two lifetimes share an action and a byte and all lie within the arena, else a text about the first
// fault.
std::string check(const Placement& placement, const std::vector<Lifetime>& lifetimes);

}  // namespace gptrain::schedule
