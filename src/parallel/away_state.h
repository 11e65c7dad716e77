// Masters and optimizer state of units that are not at home (StateLayout), while no update uses them. On the host of a
// GPU they are always in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/away_clone.h"
#include "parallel/away_pieces.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"
#include "parallel/update_copies.h"
#include "storage/working_files.h"

namespace gptrain::inline parallel {

// Bytes of a unit's range that are read before, and written after, a change of its state by an update or by a caller of
// AwayState. Gradients, which only updates read, are not counted.
struct AwayBytes {
  int64_t read, written;
};
AwayBytes away_bytes(const ParameterStore& parameters, int64_t unit);

// Name of the event that reads the gradients of a unit for its update.
constexpr std::string_view gradient_read_name = "disk_read_gradients";

// Reads and writes the working files through the landing area, one unit at a time. Used by the rank's thread.
class AwayState {
 public:
  // Borrows all. `files`: null if no state is on disk, and in a plan, which only logs reads and writes. `beside_device`
  // and `copies` as in UpdateLane. `before_use`: called before the landing area is used.
  AwayState(const ParameterStore& parameters, RankGroups& groups, WorkingFiles* files, UpdateCopies* copies,
            bool beside_device, std::function<void()> before_use);

  // Brings the unit's state to its landing place, after writing back the one before it if that was changed; no effect
  // if the unit is at home.
  void fetch(int64_t unit);
  // As `fetch`, and also brings the unit's summed gradients to their landing place if they are away. Beside a GPU it
  // copies the values that the unit's update reads from the device to the host. REQUIRES: no update runs.
  void fetch_with_gradients(int64_t unit);
  // Says that the caller changes the state of the unit that was fetched.
  void change() { changed_ = true; }
  // Writes the fetched unit back if it was changed, and forgets it. Call before updates.
  void release();
  // Zeroes the state of all units that are away.
  void clear();
  // Clones the saved pieces of the working files. `memory`: see AwayClone. THROWS as StoredFiles::clone. REQUIRES:
  // there are files.
  std::shared_ptr<AwayClone> clone(std::span<std::byte> memory);

  // Fetches the unit that has the value at such an address, and returns the value's address in the landing area.
  std::byte* fetched(const void* address);

 private:
  void move(int64_t unit, bool writes);
  void bring(int64_t unit);

  const ParameterStore& parameters_;
  RankGroups& groups_;
  WorkingFiles* const files_;
  UpdateCopies* const copies_;
  const bool beside_device_;
  const std::function<void()> before_use_;
  int64_t fetched_ = -1;  // unit in the landing area; -1: none
  int64_t brought_ = -1;  // unit whose values were copied from the device; -1: none
  bool changed_ = false;
  bool has_gradients_ = false;  // whether the landing area has the gradients of the fetched unit
};

}  // namespace gptrain::parallel
