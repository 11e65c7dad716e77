// Weights on disk or on the host of a GPU: reading them ahead of the actions that gather them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "parallel/groups.h"
#include "parallel/parameters.h"
#include "parallel/rank_queue.h"
#include "parallel/update_lane.h"
#include "storage/working_files.h"

namespace gptrain::inline parallel {

// Reads this rank's pieces of weights into the slots of ParameterStore::weight_slots, in the order in which a program
// gathers them, as far ahead as slots are free. A unit's weights are read once its last update has written them. Used
// by the rank's thread. All functions THROW as WorkingFiles::wait.
class WeightReads {
 public:
  // Borrows all. `files`: null if none are on disk; `gpu`: null if the ops run on a CPU. Both are null in a plan, which
  // only logs the reads.
  WeightReads(const ParameterStore& parameters, RankGroups& groups, WorkingFiles* files, Backend* gpu,
              UpdateLane& lane);
  // Waits for the reads under way.
  ~WeightReads();
  WeightReads(const WeightReads&) = delete;
  WeightReads& operator=(const WeightReads&) = delete;

  // Says which units are gathered next, in this order, in place of those said before, and begins to read. REQUIRES: all
  // gathers passed to `release` are over.
  void begin(const std::vector<int32_t>& units);
  // Waits until the weights of the next unit, which is `unit`, are in its slot; on a GPU it makes the ops wait instead.
  // THROWS std::logic_error if another unit is next, and as UpdateLane::await_weights.
  void fetch(int64_t unit);
  // Says that the gather reads the unit's slot until its ticket is over, and begins to read more. REQUIRES: the last
  // call was fetch(unit).
  void release(int64_t unit, Lane::Ticket gather);

 private:
  struct Slot {
    bool is_taken = false;             // by weights that are read or were, and not yet released
    Lane::Ticket gather = Lane::done;  // gather of the unit that was released last
    size_t released = 0;               // number of units released before that one
  };
  bool is_plan() const { return files_ == nullptr && !to_device_; }
  bool can_begin() const;
  WorkingFiles::Times arrive(bool logs);
  void begin_next();
  void read_ahead();
  void forget();

  const ParameterStore& parameters_;
  RankGroups& groups_;
  WorkingFiles* const files_;
  std::optional<RankQueue> to_device_;  // empty if the ops run on a CPU
  UpdateLane& lane_;
  std::vector<int32_t> order_;
  size_t released_ = 0;  // units of order_ that were gathered
  // Reads of units of order_ from released_ on: of files, or copies from the host of a GPU.
  std::deque<int64_t> reads_;
  std::vector<Slot> slots_;
};

}  // namespace gptrain::parallel
