// Interface of transports between processes: they move messages within one group. comm/exchange.h builds the
// collectives from it.
#pragma once

#include <cstdint>
#include <span>

#include "comm/call.h"

namespace gptrain::inline comm {

struct Message {
  Call call;  // the operation; the receiver compares it with its own
  int peer = 0;
  bool sending = false;
  const void* in = nullptr;  // send: data, borrowed
  void* out = nullptr;       // receive: destination, borrowed
  int64_t bytes = 0;
};

// One rank's end of a group's links. Calls come from one thread.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Runs all messages together and returns when each is sent (its buffer may be reused) or received. Messages between
  // two ranks are matched in list order: the n-th sent is the n-th received. REQUIRES: none is to this rank itself.
  // THROWS Error(device) if a peer is gone or an arriving message belongs to another call; the transport is unusable
  // after that.
  virtual void exchange(std::span<const Message> messages) = 0;
  // Lets exchanges yield the core while they wait; they may take a millisecond longer. No effect if they do so anyway.
  virtual void be_patient() {}
  // Makes a waiting exchange and all later ones throw Error(device). Any thread.
  virtual void abort() = 0;
};

// Throws Error(device) if a message from `peer`, with its sender's call and size, is not the one that `expected` waits
// for. `rank`: the receiver.
void check_arrival(const Call& sent, int64_t sent_bytes, const Message& expected, int rank);

}  // namespace gptrain::comm
