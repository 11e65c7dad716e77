// Lanes: queues of one rank's communication that run beside its computation and do not wait for each other.
//
// Rules that make several lanes safe:
//   - A lane has its own communicators, over one or several groups, and its own staging memory. Messages of two lanes
//     cannot meet: each communicator is a duplicate under MPI, a set of connections under TCP, a meeting place of its
//     own between threads, and an ncclComm on the lane's own stream under NCCL.
//   - A lane runs its items one after another in the order of issue, whatever their groups. All ranks of a group issue
//     its items on that lane in the same order. If a lane has items of several groups, their order is free of deadlock
//     even if every item waits for its peers.
//   - Items of different lanes are unordered. An item that needs another lane's result is issued after a wait for it.
//   - A rank's program, all lanes together, must finish even if every item were waited for where it is issued, except
//     receives between stages, which are issued early and have lanes of their own. Schedules are checked for this. So
//     items that a rank issued before it failed can end without later ones. Threads of lanes run them to their end,
//     unless the run has several stages: then the rank gives up all its lanes first. NCCL waits for them, and aborts
//     them if a group has failed or the wait takes too long. As every program ends in the order of issue, one thread
//     may queue the work of all lanes (NCCL).
//   - Nothing is buffered: a send may wait for its receive. Opposing transfers use two lanes or one group of transfers.
//   - When an item fails, the rank gives up all its lanes, as their peers may be waiting for the failed one.
// Over MPI the lanes' threads call MPI concurrently (MPI_THREAD_MULTIPLE), each with its own requests, and no call
// blocks inside MPI.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/event_log.h"
#include "comm/call.h"
#include "comm/communicator.h"
#include "ops/side_queue.h"

namespace gptrain::inline comm {

class Lane;

// The first failure of a rank's lanes, which ends them all. Thread-safe.
class LaneFailure {
 public:
  // Returns null if no lane has failed.
  std::exception_ptr first() const;
  // Stores the failure if it is the first, and aborts the running item of every lane.
  void set(std::exception_ptr failure);

 private:
  friend class Lane;
  void add(Lane* lane);
  void remove(Lane* lane);

  mutable std::mutex mutex_;
  std::exception_ptr first_;
  std::vector<Lane*> lanes_;
};

// Runs communication in order of issue. An issued item may start at once: its input must be ready, and neither buffer
// may be touched until `wait` of its ticket returns. A null group has one rank: nothing is moved, `out` is not written,
// and the ticket is `done`. One thread issues and waits. Issuing does not allocate; a full lane makes the caller wait
// for the oldest item. With a thread, every later `wait` but of `done` throws the exception of an item on any lane.
class Lane {
 public:
  using Ticket = int64_t;
  static constexpr Ticket done = 0;

  struct Options {
    // False: items run, or enter the queue, when they are issued (in plans, with NCCL, in lanes without groups).
    bool threaded = false;
    // The device queue in which the groups work; null: host memory. Must outlive the lane. The input is then ready once
    // all ops called before the issue are done, and ops called after `wait` see the output. With a queue and no thread,
    // issuing only queues the work, and `wait` makes later ops wait for it, not the caller.
    SideQueue* queue = nullptr;
    std::shared_ptr<LaneFailure> failure = nullptr;  // shared by the rank's lanes; null: this lane is alone
    int8_t number = -1;                              // lane number in events
    std::vector<const Communicator*> groups = {};    // groups by their number in events
  };
  explicit Lane(std::string name, const Options& options);
  // Waits until all issued items have run, as peers may be waiting for them; after a failure drops them.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const std::string& name() const { return name_; }

  Ticket all_reduce(Communicator* group, void* data, int64_t count, DType dtype, ReduceOp op = ReduceOp::sum);
  // `out` may be this rank's piece of `in`.
  Ticket reduce_scatter(Communicator* group, const void* in, void* out, int64_t count, DType dtype);
  // `in` may be this rank's piece of `out`.
  Ticket all_gather(Communicator* group, const void* in, void* out, int64_t count, DType dtype);
  Ticket all_to_all(Communicator* group, const void* in, void* out, int64_t count, DType dtype);
  // The spans must stay valid until `wait` of the ticket returns.
  Ticket all_to_all_v(Communicator* group, const void* in, std::span<const PeerPart> sent, void* out,
                      std::span<const PeerPart> received, DType dtype);
  Ticket broadcast(Communicator* group, void* data, int64_t count, DType dtype, int root);
  Ticket send(Communicator* group, const void* data, int64_t count, DType dtype, int peer);
  Ticket receive(Communicator* group, void* data, int64_t count, DType dtype, int peer);
  Ticket barrier(Communicator* group);
  // Begin and end a group of transfers that run together; the ticket covers all of them.
  void transfers_start(Communicator* group);
  Ticket transfers_end(Communicator* group);

  void wait(Ticket ticket);
  void wait_all() { wait(issued_); }

  // Records items and waits from now on in `log`, while that is on; null: stops recording. Each transfer of a group is
  // an event; transfers that run together have the same times. A wait is an event if the caller had to wait, for an
  // item or for room in a full lane: it is the communication time that no computation hides. With a queue and no
  // thread, recording makes the caller wait for each item when it is issued, so nothing is hidden. With neither (a
  // plan), times are 0 and every wait is an event.
  void set_log(EventLog* log) { log_ = log; }

 private:
  friend class LaneFailure;

  struct Item {
    enum class Kind : uint8_t { call, transfers_start, transfers_end } kind = Kind::call;
    Communicator* group = nullptr;
    Call call = {};
    const void* in = nullptr;
    void* out = nullptr;
    std::span<const PeerPart> sent = {}, received = {};
    EventLog* log = nullptr;  // null: not recorded
    int64_t event = -1;       // event number of a call
  };

  // One item per mark of the queue: an item keeps its mark until it has ended.
  static constexpr size_t ring_size = SideQueue::num_marks;

  Ticket issue(Item item);
  template <typename Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, int64_t event, Condition condition);
  // Records the item with times 0. `ticket`: the ticket that its issue will return.
  void log_item(Item& item, Ticket ticket);
  Event event_of(const Item& item) const;
  bool logs() const { return log_ != nullptr && log_->on(); }
  void log_wait(int64_t event, double start_seconds, double end_seconds);
  int64_t event_of_ticket(Ticket ticket) const;
  void run_and_log(const Item& item);
  void log_times(const Item& item, double start_seconds, double end_seconds);
  static void run(const Item& item);
  static void run_call(const Item& item);
  static size_t slot_of(Ticket issued_before) { return static_cast<size_t>(issued_before) % ring_size; }
  void work();
  void give_up();  // aborts the running item after a failure

  const std::string name_;
  const bool threaded_;
  SideQueue* const queue_;
  const std::shared_ptr<LaneFailure> failure_;
  std::array<Item, ring_size> ring_{};
  Ticket issued_ = 0;  // ticket of the last issued item; caller's thread only
  const int8_t number_;
  const std::vector<const Communicator*> groups_;
  EventLog* log_ = nullptr;
  int64_t last_event_ = -1;
  struct Logged {
    Ticket ticket = done;
    int64_t event = -1;
  };
  std::array<Logged, ring_size> logged_{};  // event numbers of the last items
  // Transfers since transfers_start, with their event numbers; used by the thread that runs items.
  bool gathering_ = false;
  std::vector<int64_t> gathered_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  Ticket submitted_ = 0;
  Ticket finished_ = 0;
  Communicator* running_ = nullptr;
  bool stopping_ = false;

  std::thread thread_;  // last member: starts when the others exist
};

}  // namespace gptrain::comm
