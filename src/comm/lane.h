// Lanes: the communication of one rank, in queues that do not wait for each other, while the rank's thread computes.
//
// What makes several of them safe:
//   - A lane has communicators of its own, over one or several groups, and staging of its own. Messages of two lanes
//     cannot meet: each communicator of MPI is a duplicate, of TCP a set of connections, of threads a meeting place, of
//     NCCL an ncclComm on a stream of the lane's own.
//   - A lane runs its items one after another in the order of issue, whatever their groups. All ranks of a group issue
//     its items on that lane in one order, and the items of several groups of a lane in an order in which each could
//     wait for its peers where it stands.
//   - Items of different lanes have no order. What needs the result of another lane is issued after a wait for it.
//   - The program of a rank, all its lanes taken together, must come to its end even if every item were waited for
//     where it is issued, but for receives between stages, which begin ahead of their need and have lanes of their own.
//     Schedules are checked for that. So what was issued before a rank fails runs to its end, its peers need nothing
//     from later on, and one thread may queue the work of all lanes on a device (NCCL). A stage that fails gives up its
//     lanes first.
//   - Nothing is buffered: a send may wait for its receive. Transfers that oppose each other go on two lanes, or in one
//     group of transfers.
//   - When an item of one lane fails, the rank gives up all its lanes: they may have peers that wait for the first.
// Over MPI the threads of the lanes call MPI at the same time (MPI_THREAD_MULTIPLE), each with requests of its own, and
// no call waits inside MPI.
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

namespace gptrain {

class Lane;

// The first failure of a rank's lanes, which ends them all. Any thread.
class LaneFailure {
 public:
  // Null: none yet.
  std::exception_ptr first() const;
  // Keeps the first, and aborts what every lane is waiting for.
  void set(std::exception_ptr failure);

 private:
  friend class Lane;
  void add(Lane* lane);
  void remove(Lane* lane);

  mutable std::mutex mutex_;
  std::exception_ptr first_;
  std::vector<Lane*> lanes_;
};

// An issued item may begin at once: its input must be ready, and neither buffer may be touched until `wait` of its
// ticket has returned. A group that is null has one rank: nothing is moved, and the ticket is `done`; callers keep in
// mind that `out` is then not written. One thread issues and waits. Issuing does not allocate; a lane that is full
// makes the caller wait for the oldest. What an item of any of the rank's lanes throws, every later `wait` throws.
class Lane {
 public:
  using Ticket = int64_t;
  static constexpr Ticket done = 0;

  struct Options {
    // Without a thread of its own (`plan`, lanes without groups) items run when they are issued.
    bool threaded = false;
    // Where the groups work, if given; outlives the lane. An input is then ready when the ops are over that were called
    // before the item is issued, and ops called after `wait` find the output. With both a queue and no thread, groups
    // only queue their work when it is issued, and a `wait` makes the ops wait for it and not the caller.
    SideQueue* queue = nullptr;
    std::shared_ptr<LaneFailure> failure = nullptr;  // of the rank's lanes; null: the lane is the only one
    int8_t number = -1;                              // in events: the lane's,
    std::vector<const Communicator*> groups = {};    // and a group's, which is its place in this list
  };
  explicit Lane(std::string name, const Options& options);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const std::string& name() const { return name_; }

  Ticket all_reduce(Communicator* group, void* data, int64_t count, DType dtype, ReduceOp op = ReduceOp::sum);
  // `out` may be this rank's place in `in`.
  Ticket reduce_scatter(Communicator* group, const void* in, void* out, int64_t count, DType dtype);
  // `in` may be this rank's place in `out`.
  Ticket all_gather(Communicator* group, const void* in, void* out, int64_t count, DType dtype);
  Ticket all_to_all(Communicator* group, const void* in, void* out, int64_t count, DType dtype);
  // The parts are the caller's until the ticket's wait has returned.
  Ticket all_to_all_v(Communicator* group, const void* in, std::span<const PeerPart> sent, void* out,
                      std::span<const PeerPart> received, DType dtype);
  Ticket broadcast(Communicator* group, void* data, int64_t count, DType dtype, int root);
  Ticket send(Communicator* group, const void* data, int64_t count, DType dtype, int peer);
  Ticket receive(Communicator* group, void* data, int64_t count, DType dtype, int peer);
  Ticket barrier(Communicator* group);
  // Transfers of the group that are issued between the two run together, as the ticket of the end says.
  void transfers_start(Communicator* group);
  Ticket transfers_end(Communicator* group);

  void wait(Ticket ticket);
  void wait_all() { wait(issued_); }

  // Writes the items and waits that are issued from now on to the log, while it is on; null: to none. Each transfer of a
  // group is an event; transfers that run together have the same times. A wait is an event if the caller had to wait,
  // for an item or for room in a full lane: it is the part of the communication that no work has hidden. With a queue
  // and no thread, a log makes the caller wait for each item as it is issued, so that no work hides any of it. With
  // neither, as in a plan, nothing takes time, and every wait is an event.
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
    EventLog* log = nullptr;  // null: it is not written down
    int64_t event = -1;       // of a call
  };

  // As many as there are marks: that of an item is kept until it has ended.
  static constexpr size_t ring_size = SideQueue::num_marks;

  Ticket issue(Item item);
  template <typename Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, int64_t event, Condition condition);
  // Writes the item down, as something that has not run; `ticket` is what its issue will return.
  void log_item(Item& item, Ticket ticket);
  Event event_of(const Item& item) const;
  bool logs() const { return log_ != nullptr && log_->on(); }
  void log_wait(int64_t event, double start_seconds, double end_seconds);
  int64_t event_of_ticket(Ticket ticket) const;
  void run_and_log(const Item& item);
  void log_times(const Item& item, double start_seconds, double end_seconds);
  static void run(const Item& item);
  static void run_call(const Item& item);
  static size_t place_of(Ticket issued_before) { return static_cast<size_t>(issued_before) % ring_size; }
  void work();
  void give_up();  // what runs, for a failure of the rank's lanes

  const std::string name_;
  const bool threaded_;
  SideQueue* const queue_;
  const std::shared_ptr<LaneFailure> failure_;
  std::array<Item, ring_size> ring_{};
  Ticket issued_ = 0;  // by the caller
  const int8_t number_;
  const std::vector<const Communicator*> groups_;
  EventLog* log_ = nullptr;
  int64_t last_event_ = -1;
  struct Logged {
    Ticket ticket = done;
    int64_t event = -1;
  };
  std::array<Logged, ring_size> logged_{};  // the last ones
  // Of what runs: the events of the transfers that are being gathered.
  bool gathering_ = false;
  std::vector<int64_t> gathered_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Ticket submitted_ = 0;
  Ticket finished_ = 0;
  Communicator* running_ = nullptr;
  bool stopping_ = false;

  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace gptrain
