// Sums of gradients on disk or on the host of a GPU, from the passes that make them to the updates that read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ops/backend.h"
#include "parallel/groups.h"
#include "parallel/host_slots.h"
#include "parallel/parameters.h"
#include "parallel/rank_queue.h"
#include "storage/working_files.h"

namespace gptrain::inline parallel {

// Moves this rank's pieces of summed gradients between buckets and their place, through the slots of
// ParameterStore::gradient_slots. Writes go on while the next units are computed. Beside a GPU, those to files pass
// slots of its host (HostSlots). Used by the rank's thread. All functions THROW as WorkingFiles::wait.
//
// With ZeRO 2 and 3 the sum over ranks of each micro-batch is added to the piece. Else a bucket begins with the sum of
// earlier micro-batches (Sharding::buckets_hold_sums), so that the ops add to it as they add to gradients in memory.
// Sums in bf16 are made in the slots by AccumulatedGradients.
class AwayGradients {
 public:
  // Borrows all. `files`: null if none are on disk; `gpu`: null if the ops run on a CPU. Both are null in a plan, which
  // only logs reads and writes.
  AwayGradients(const ParameterStore& parameters, RankGroups& groups, Backend& backend, WorkingFiles* files,
                Backend* gpu, const HostSlots& host_slots);
  // Waits for the writes under way.
  ~AwayGradients();
  AwayGradients(const AwayGradients&) = delete;
  AwayGradients& operator=(const AwayGradients&) = delete;

  // Reads the sum of earlier micro-batches into the unit's slot.
  void read(int64_t unit);
  // Fills a unit's bucket with the sum of earlier micro-batches. REQUIRES: Sharding::buckets_hold_sums.
  void load(int64_t unit, std::byte* bucket);
  // Says that `load` has no effect, or has one again: passes run whose gradients are not kept.
  void set_resting(bool resting) { resting_ = resting; }
  // Puts the rank's piece of a bucket into the unit's slot. With ZeRO 2 and 3 adds it to the sum of earlier
  // micro-batches, which it reads first.
  void take(int64_t unit, const std::byte* bucket, int64_t micro_batch);
  // Makes the unit's slot ready for AccumulatedGradients: with `reads` it holds the sum of earlier micro-batches, else
  // it may be overwritten.
  void prepare(int64_t unit, bool reads);
  // Begins to write the unit's slot, which has been filled.
  void write(int64_t unit);
  // Waits until all gradients are written. Call before updates read them.
  void finish();

 private:
  struct Write {
    int64_t unit;
    RankQueue::Ticket copy = RankQueue::done;        // to the host
    WorkingFiles::Ticket file = WorkingFiles::done;  // is `done` also until the copy is over
    EventLog* log = nullptr;                         // null: not recorded
    int64_t event = -1;
  };
  bool is_on_gpu() const { return backend_.target().kind == Target::Kind::gpu; }
  void await_slot(int64_t unit);
  RankQueue::Ticket copy(int64_t unit, bool to_host);
  std::byte* place_of_files(int64_t unit) const;
  void read_file(int64_t unit);
  void write_file(Write& write);
  void end(Write& write);

  const ParameterStore& parameters_;
  RankGroups& groups_;
  Backend& backend_;
  WorkingFiles* const files_;
  const HostSlots host_slots_;
  bool resting_ = false;
  std::optional<RankQueue> to_host_, to_device_;  // empty if the ops run on a CPU
  std::deque<Write> writes_;                      // under way, oldest first
  std::vector<RankQueue::Ticket> copied_;         // by slot: last copy to the device
};

}  // namespace gptrain::parallel
