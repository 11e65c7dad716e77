// Pieces of working files that hold the ranges of units on disk (StateLayout), and addresses of values that are away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/parameters.h"
#include "storage/stored_files.h"

namespace gptrain::inline parallel {

// Returns the pieces of working files that hold the ranges of units on disk: by part, then by unit. Units at home have
// 0 bytes.
std::vector<StoredPiece> stored_pieces(const ParameterStore& parameters);
// Returns the number of a part of a unit's range in stored_pieces.
inline size_t stored_piece(const ParameterStore& parameters, AwayPart part, int64_t unit) {
  return static_cast<size_t>(static_cast<int64_t>(part) * parameters.num_parameter_units() + unit);
}

// Returns whether an address in a StateSlice is that of a value that is away, and its offset there.
inline bool is_away_address(const void* address) { return reinterpret_cast<uintptr_t>(address) >= away_addresses; }
inline int64_t offset_away(const void* address) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) - away_addresses);
}

// Returns how many of stored_pieces, from the first on, have the values of checkpoints.
size_t num_saved_pieces(const ParameterStore& parameters);

}  // namespace gptrain::parallel
