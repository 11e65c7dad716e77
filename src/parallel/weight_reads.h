// Weights on disk or on the host of a GPU: reading them ahead of the actions that gather them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "parallel/groups.h"
#include "parallel/host_slots.h"
#include "parallel/parameters.h"
#include "parallel/rank_queue.h"
#include "parallel/update_lane.h"
#include "storage/working_files.h"

namespace gptrain::inline parallel {

// Reads this rank's pieces of weights into the slots of ParameterStore::weight_slots, in the order in which a program
// gathers them, as far ahead as slots are free. A unit's weights are read once its last update has written them. Beside
// a GPU, weights on disk come to slots of its host first (HostSlots). Used by the rank's thread. All
// functions THROW as WorkingFiles::wait.
class WeightReads {
 public:
  // Borrows all. `files`: null if none are on disk; `gpu`: null if the ops run on a CPU. Both are null in a plan, which
  // only logs the reads.
  WeightReads(const ParameterStore& parameters, RankGroups& groups, WorkingFiles* files, Backend* gpu,
              const HostSlots& host_slots, UpdateLane& lane);
  // Waits for the reads under way.
  ~WeightReads();
  WeightReads(const WeightReads&) = delete;
  WeightReads& operator=(const WeightReads&) = delete;

  // Says which units are gathered next, in this order, in place of those said before, and begins to read. REQUIRES: all
  // gathers passed to `release` are over.
  void begin(const std::vector<int32_t>& units);
  // Says that `begin` has no effect, or has one again: passes run that gather no weights.
  void set_resting(bool resting) { resting_ = resting; }
  // Waits until the weights of the next unit, which is `unit`, are in its slot; on a GPU it makes the ops wait instead.
  // THROWS std::logic_error if another unit is next, and as UpdateLane::await and WorkingFiles::wait.
  void fetch(int64_t unit);
  // Says that the gather reads the unit's slot until its ticket is over, and begins to read more. REQUIRES: the last
  // call was fetch(unit).
  void release(int64_t unit, Lane::Ticket gather);

 private:
  struct Slot {
    bool is_taken = false;                     // by weights that are read or were, and not yet released
    Lane::Ticket gather = Lane::done;          // gather of the unit that was released last
    size_t released = 0;                       // number of units released before that one
    RankQueue::Ticket copy = RankQueue::done;  // last one from the host
  };
  // A read under way: of a file, then a copy from the host, or only one of the two.
  struct Read {
    int64_t unit;
    WorkingFiles::Ticket file = WorkingFiles::done;
    RankQueue::Ticket copy = RankQueue::done;
    WorkingFiles::Times of_file = {}, of_copy = {};
  };
  bool is_plan() const { return files_ == nullptr && !to_device_; }
  bool can_begin() const;
  bool passes_host() const { return files_ != nullptr && to_device_; }
  void arrive(bool logs);
  void begin_next();
  void begin_copy(Read& read);
  void copy_on(bool may_wait);
  void read_ahead();
  void forget();

  const ParameterStore& parameters_;
  RankGroups& groups_;
  WorkingFiles* const files_;
  std::optional<RankQueue> to_device_;  // empty if the ops run on a CPU
  const HostSlots host_slots_;
  UpdateLane& lane_;
  std::vector<int32_t> order_;
  bool resting_ = false;
  size_t released_ = 0;     // units of order_ that were gathered
  std::deque<Read> reads_;  // units of order_ from released_ on
  std::vector<Slot> slots_;
};

}  // namespace gptrain::parallel
