// Who belongs to a run. Its ranks share a secret and prove to each other that they know it before anything else is
// said; who does not know it costs a few bytes of memory until it is dropped. README.md of this folder says what is
// protected.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/socket.h"

namespace gptrain {

// A key of HMAC-SHA256 (RFC 2104). Without one, proofs are made with an empty key, which everybody knows.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string key) : key_(std::move(key)) {}

  bool given() const { return !key_.empty(); }
  // Of a statement: 64 hexadecimal digits.
  std::string proof(std::string_view statement) const;
  bool proves(std::string_view proof, std::string_view statement) const;  // in a time that says nothing of the proof

 private:
  std::string key_;
};

// The value of GPTRAIN_SECRET, or the content of the file that GPTRAIN_SECRET_FILE names, which nobody else may be
// able to read; none where neither is set. Error(device): fewer than 16 characters, or a file that cannot be used.
Secret find_secret(const Environment& environment);
Secret find_secret();  // of this process

// 32 bytes that nobody can guess, as 64 hexadecimal digits.
std::string draw_secret();

// Why a call has ended.
enum class CallEnd : uint8_t { proven, unreachable, closed, stranger };

// The caller's side, on a new connection: both sides prove that they know `secret` for `purpose`, which names the
// listener. Not `proven` by the deadline: the channel is closed.
CallEnd prove_to(FrameChannel& channel, const Secret& secret, std::string_view purpose, Clock::time_point deadline);

// The listener's side, for any number of callers at a time. Each has a few seconds and kilobytes to prove itself, and
// the first of them is dropped where too many wait. Never throws for what a caller does.
class Gate {
 public:
  Gate() = default;
  Gate(Socket listener, Secret secret, std::string purpose);
  // What is to be proved from here on. Who has come before waits in the listener's queue.
  void open(Secret secret, std::string purpose);

  struct Guest {
    FrameChannel channel;
    std::string address;  // numeric
    std::string text;     // its first frame after the proof
  };
  // Lets those in who have come, without waiting.
  void serve();
  // The next guest; nothing if none comes before the deadline.
  std::optional<Guest> admit(Clock::time_point deadline);

  const Socket& listener() const { return listener_; }
  int64_t num_turned_away() const { return num_turned_away_; }

 private:
  struct Caller {
    FrameChannel channel;
    std::string address;
    Clock::time_point deadline;
    std::string statement;  // what the caller has to prove; empty before it has greeted
    bool proven = false;
  };

  void accept_all();
  bool advance(Caller& caller);  // false: it is done with, as a guest or dropped
  bool answer(Caller& caller, const std::string& greeting);
  void drop(Caller& caller);
  void wait(Clock::time_point deadline) const;

  Socket listener_;
  Secret secret_;
  std::string purpose_;
  std::deque<Caller> callers_;
  std::deque<Guest> guests_;
  int64_t num_turned_away_ = 0;
};

}  // namespace gptrain
