// Updates whose optimizer state is on disk, or on the host of a GPU: reading ahead, updating and writing behind, beside
// the rank's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/deferred_backend.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"
#include "parallel/update_copies.h"
#include "storage/working_files.h"

namespace gptrain::inline parallel {

// One thread updates unit after unit, in the order of the layout: it waits until the unit's state has been read into
// the landing area, runs its ops, and begins to write the state. All reads are asked for when an update is issued: each
// begins once earlier state at its place is written. So the state of the next units is read meanwhile, as far as the
// landing area has room, and that of the first units before the step that updates them. Beside a GPU it waits
// until the unit's gradients have come to the host, and begins to copy the updated weights back; the gradients of the
// next unit come meanwhile.
//
// The rank's thread calls all methods. An error of the lane's thread is thrown by the next call of `end` or of a
// function that waits.
class UpdateLane {
 public:
  // Borrows all. `files`: null if nothing is on disk. `copies`: null unless ops run on a GPU. Both are null in a plan,
  // in which ops only go to `backend`, and disk transfers and copies to the log. `beside_device`: the rank's ops run on
  // a GPU, which exchanges weights and gradients with the host. `cores`: for the threads of the lane and of its ops;
  // empty: all.
  UpdateLane(const ParameterStore& parameters, Backend& backend, RankGroups& groups, WorkingFiles* files,
             UpdateCopies* copies, bool beside_device, const std::vector<int>& cores);
  // Drops updates that have not begun. Waits for the one that runs, and for transfers.
  ~UpdateLane();
  UpdateLane(const UpdateLane&) = delete;
  UpdateLane& operator=(const UpdateLane&) = delete;

  // The backend of updates. Its ops run at once, except those between `begin` and `end`. They are logged in the log
  // that the groups had at the last `drain` or `begin`.
  Backend& backend() { return backend_; }
  bool beside_device() const { return beside_device_; }
  // False in a plan, whose ops do not run.
  bool runs_ops() const { return has_thread(); }

  // Call `begin` before the ops that update a unit, and `end` after them. The lane's thread then runs the ops.
  void begin(int64_t unit);
  void end(int64_t unit);
  // Waits until the unit's update is over, its state not yet written. Ops called afterwards see its weights.
  void await(int64_t unit);
  // Returns whether `await` would not wait.
  bool is_over(int64_t unit);
  // Returns the ticket of the last write of the unit's weights to disk, which may not have begun.
  WorkingFiles::Ticket weight_write(int64_t unit) const { return writes_[unit].transfers.weights; }
  // Waits until all updates are over.
  void drain();
  // Waits until all updates are over and all state is written. The landing area is then free: no state is read before
  // the next `end` or `resume`.
  void suspend();
  void resume();

 private:
  // Transfers of the state and the weights of a unit.
  struct Transfers {
    WorkingFiles::Ticket state = WorkingFiles::done, weights = WorkingFiles::done;
  };
  struct Write {
    Transfers transfers = {};
    EventLog* log = nullptr;  // null: not recorded
    int64_t event = -1;
  };
  struct Update {
    int64_t unit = -1;
    DeferredBackend::Works works;
    EventLog* log = nullptr;                           // null: not recorded
    int64_t to_host_event = -1, to_device_event = -1;  // copies between host and device
    // Transfers of the disk.
    Transfers read = {};
    WorkingFiles::Ticket gradients = WorkingFiles::done;
    int64_t read_event = -1, gradients_event = -1;
    Write last_write = {}, write = {};  // writes of the unit's state before the update, and after it
  };

  bool has_thread() const { return files_ != nullptr || copies_ != nullptr; }
  int64_t unit_at(int64_t visit) const { return order_[visit % std::ssize(order_)]; }
  WorkingFiles::Times wait(const Transfers& transfers);
  void end_write(const Write& write);
  bool overlap(int64_t a, int64_t b) const;
  std::vector<WorkingFiles::Ticket> writes_at_place_of(int64_t unit) const;
  bool can_read_ahead() const;
  void read_ahead();
  void ask(Update& update);
  void land(const Update& update);
  int64_t log_copy(int64_t unit, bool to_host) const;
  void bring(const Update& update, int64_t next);
  void give_back(const Update& update);
  void follow(int64_t unit);
  void run(Update& update, int64_t next);
  void work();
  void wait_idle(std::unique_lock<std::mutex>& lock);

  const ParameterStore& parameters_;
  DeferredBackend backend_;
  RankGroups& groups_;
  WorkingFiles* const files_;
  UpdateCopies* const copies_;
  const bool beside_device_;
  std::vector<int64_t> order_;  // units on disk, in the order of their updates
  Update called_;               // between begin and end

  // Used by the rank's thread. A visit is an update of a unit on disk; visit v is of the unit unit_at(v).
  int64_t issued_ = 0;           // number of visits whose updates were issued
  std::deque<Transfers> reads_;  // reads of the visits issued_, issued_ + 1, ...
  std::vector<Write> writes_;    // by unit: last write, which may not have begun

  int64_t brought_ = -1;  // unit whose gradients come before its update begins; used by the lane's thread

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<Update> waiting_;
  bool busy_ = false, stopping_ = false;
  std::vector<bool> pending_;  // by unit: its update is not over
  std::vector<bool> returns_;  // by unit: its weights were given back, and the ops do not follow yet
  std::exception_ptr failure_;
  std::atomic<int64_t> num_pending_ = 0;
  std::thread thread_;  // last: uses the above
};

}  // namespace gptrain::parallel
