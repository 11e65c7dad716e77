// What moves bytes between the devices of a group: the seam between collectives on devices and a library.
//
// device/nccl.cpp is NCCL's. Tests on the host harness have their own.
#pragma once

#include <cstdint>
#include <span>

#include "stream.h"

namespace gptrain {

// One rank's end. What is queued on the stream runs in order, and meets what the peers queue in the same order. Nothing
// here computes with what it moves. Error(device), PeerGone: of no use from then on.
class Links {
 public:
  virtual ~Links() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Stream stream() const = 0;
  // A second queue of the device, which computes with what has come while the stream moves the next.
  virtual Stream sums() const = 0;
  // What is queued in sums() from now on runs after what is queued on the stream.
  virtual void sums_follow_moves() = 0;
  // Marks what is queued in sums() as that of one half of the memory that it reads, 0 or 1; what is queued on the stream
  // from then on runs after what was last marked so.
  virtual void mark_sums(int half) = 0;
  virtual void moves_follow_sums(int half) = 0;

  // A send or a receive of device memory.
  struct Transfer {
    int peer;
    const void* in;  // null: a receive
    void* out;       // null: a send
    int64_t bytes;
  };
  // Queues all together. Those of an ordered pair of ranks meet in their order.
  virtual void exchange(std::span<const Transfer> transfers) = 0;
  // out[r * bytes ...] = in of rank r. `in` may be its own place in out.
  virtual void all_gather(const void* in, void* out, int64_t bytes) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  // Waits for what is queued.
  virtual void synchronize() = 0;
};

}  // namespace gptrain
