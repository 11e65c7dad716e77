// The collectives of one rank, run by a thread of their own in the order of issue while the rank's thread computes.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/timed_event.h"
#include "comm/communicator.h"
#include "ops/side_queue.h"

namespace gptrain {

// Every rank issues the collectives of all its groups in the same order, so one stream for all groups cannot deadlock.
// An issued collective may begin at once: its input must be ready, and neither buffer may be touched until `wait` of
// its ticket has returned. A group that is null has one rank: nothing is moved, and the ticket is `done`; callers keep
// in mind that `out` is then not written. One thread issues and waits. Issuing does not allocate; a stream that is full
// makes the caller wait for the oldest. What a collective throws, every later `wait` throws.
class CollectiveStream {
 public:
  using Ticket = int64_t;
  static constexpr Ticket done = 0;

  // Without a thread of its own (`plan`, runs of one rank) collectives run when they are issued. `queue`, if given, is
  // where the groups work, and outlives the stream: an input is then ready when the ops are over that were called
  // before the collective is issued, and ops called after `wait` find the output. With both a queue and no thread,
  // groups only queue their work when it is issued, and a `wait` makes the ops wait for it and not the caller.
  explicit CollectiveStream(bool threaded, SideQueue* queue = nullptr);
  ~CollectiveStream();
  CollectiveStream(const CollectiveStream&) = delete;
  CollectiveStream& operator=(const CollectiveStream&) = delete;

  Ticket all_reduce(Communicator* group, void* data, int64_t count, DType dtype, ReduceOp op = ReduceOp::sum);
  // `out` may be this rank's place in `in`.
  Ticket reduce_scatter(Communicator* group, const void* in, void* out, int64_t count, DType dtype);
  // `in` may be this rank's place in `out`.
  Ticket all_gather(Communicator* group, const void* in, void* out, int64_t count, DType dtype);
  Ticket broadcast(Communicator* group, void* data, int64_t count, DType dtype, int root);

  void wait(Ticket ticket);
  void wait_all() { wait(issued_); }

  // While it records, a stream with a thread writes down every collective, and every `wait` (or issue to a full stream)
  // that had to wait, which is the part of the collectives' time that no work has hidden. With a queue and no thread,
  // each collective is waited for as it is issued, and so no work hides any of it. What is done at once is not
  // recorded.
  struct Recording {
    std::vector<TimedEvent> collectives;  // in order, one after the other, beside the caller's work
    std::vector<TimedEvent> waits;
  };
  void start_recording();
  Recording take_recording();  // ends it

 private:
  enum class Kind : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast };
  struct Item {
    Kind kind;
    Communicator* group;
    const void* in;
    void* out;
    int64_t count;
    DType dtype;
    ReduceOp op;
    int root;
  };

  // As many as there are marks: that of an item is kept until it has ended.
  static constexpr size_t ring_size = SideQueue::num_marks;

  Ticket issue(const Item& item);
  template <typename Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, Condition condition);
  void run_and_record(const Item& item);
  static TimedEvent event_of(const Item& item, double start_seconds, double end_seconds);
  static void run(const Item& item);
  static size_t place_of(Ticket issued_before) { return static_cast<size_t>(issued_before) % ring_size; }
  void work();

  const bool threaded_;
  SideQueue* const queue_;
  std::array<Item, ring_size> ring_{};
  Ticket issued_ = 0;  // by the caller

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Ticket submitted_ = 0;
  Ticket finished_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  bool recording_ = false;
  Recording recorded_;

  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace gptrain
