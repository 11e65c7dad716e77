// Moves bytes between the devices of a group: the seam between device collectives and a library.
//
// device/nccl.cpp implements it with NCCL. Tests on the host harness have their own.
#pragma once

#include <cstdint>
#include <span>

#include "stream.h"

namespace gptrain::inline cuda {

// One rank's end of the links. Work queued on the stream runs in order and pairs with the peers' work in the same
// order. Moves data without arithmetic. After an Error(device) or PeerGone the links are unusable.
class Links {
 public:
  virtual ~Links() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Stream stream() const = 0;
  // Returns a second queue of the device, which computes with received data while the stream moves the next.
  virtual Stream sums() const = 0;
  // Makes later work in sums() wait for all work queued on the stream so far.
  virtual void sums_follow_moves() = 0;
  // mark_sums: marks the work in sums() so far as reading one half of the memory, 0 or 1. moves_follow_sums: makes
  // later work on the stream wait for the half's last mark.
  virtual void mark_sums(int half) = 0;
  virtual void moves_follow_sums(int half) = 0;

  // A send or a receive of device memory.
  struct Transfer {
    int peer;
    const void* in;  // null: a receive
    void* out;       // null: a send
    int64_t bytes;
  };
  // Queues all transfers together. Transfers of an ordered pair of ranks pair up in list order.
  virtual void exchange(std::span<const Transfer> transfers) = 0;
  // out[r * bytes ...] = `in` of rank r. `in` may be this rank's piece of `out`.
  virtual void all_gather(const void* in, void* out, int64_t bytes) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  // Waits for all queued work.
  virtual void synchronize() = 0;
};

}  // namespace gptrain::cuda
