// What a transport between processes provides: moving messages inside one group. The collectives are made of it in
// comm/exchange.h.
#pragma once

#include <cstdint>
#include <span>

#include "comm/call.h"

namespace gptrain {

struct Message {
  Call call;  // the operation it belongs to, which the receiver compares with its own
  int peer = 0;
  bool sending = false;
  const void* in = nullptr;  // of a send; caller-owned
  void* out = nullptr;       // of a receive; caller-owned
  int64_t bytes = 0;
};

// One rank's end of the links of one group. Calls come from one thread.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Runs all messages together and returns when each is sent (its buffer may be reused) or received. Messages of one
  // ordered pair of ranks meet in the order in which they are listed; no message has this rank as its peer.
  // Error(device): a peer is gone, or what arrives belongs to another call. The transport is of no use after that.
  virtual void exchange(std::span<const Message> messages) = 0;
  // Exchanges may take a millisecond longer from now on, and leave the core to others while they wait.
  virtual void be_patient() {}
  // From any thread: an exchange that waits, and every later one, throws Error(device).
  virtual void abort() = 0;
};

// Throws Error(device) if a message that arrived from `peer`, with its sender's call and size, is not the one that
// `expected` waits for. `rank` is the receiver.
void check_arrival(const Call& sent, int64_t sent_bytes, const Message& expected, int rank);

}  // namespace gptrain
