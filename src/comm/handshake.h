// Membership in a run. Its ranks share a secret and prove to each other that they know it before they exchange anything
// else. A caller who does not know it costs a few bytes of memory until dropped. README.md of this folder says what is
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

namespace gptrain::inline comm {

// A key of HMAC-SHA256 (RFC 2104). Without a secret the key is empty, which everybody knows.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string key) : key_(std::move(key)) {}

  bool given() const { return !key_.empty(); }
  // Returns the HMAC of a statement as 64 hexadecimal digits.
  std::string proof(std::string_view statement) const;
  bool proves(std::string_view proof, std::string_view statement) const;  // compares in constant time

 private:
  std::string key_;
};

// Returns the value of GPTRAIN_SECRET, or the content of the file named by GPTRAIN_SECRET_FILE, which only its owner
// may be able to read; an empty secret if neither is set. THROWS Error(usage) if it has fewer than 16 characters or
// the file cannot be used.
Secret find_secret(const Environment& environment);
Secret find_secret();  // reads this process's environment

// Returns 32 random bytes as 64 hexadecimal digits.
std::string draw_secret();

// Outcome of a call to a listener; unreachable: no connection; closed: the listener closed it; stranger: no proof, or
// no answer in time.
enum class CallEnd : uint8_t { proven, unreachable, closed, stranger };

// Proves to a listener, on a new connection, that this process knows `secret`, and checks the listener's proof.
// `purpose` names the listener. If the proofs are not complete by the deadline, closes the channel and returns another
// value than `proven`.
CallEnd prove_to(FrameChannel& channel, const Secret& secret, std::string_view purpose, Clock::time_point deadline);

// A listener for any number of callers at a time. Each has a few seconds and kilobytes to prove the secret; if too many
// wait, the oldest is dropped. Never throws because of a caller.
class SecureListener {
 public:
  SecureListener() = default;
  SecureListener(Socket listener, Secret secret, std::string purpose);
  // Sets the secret and purpose that callers must prove from now on. Earlier callers wait in the listener's queue.
  void open(Secret secret, std::string purpose);

  struct Admitted {
    FrameChannel channel;
    std::string address;  // numeric
    std::string text;     // first frame after the proof
  };
  // Admits callers that have arrived, without waiting.
  void serve();
  // Returns the next guest; nullopt if none arrives by the deadline.
  std::optional<Admitted> admit(Clock::time_point deadline);

  const Socket& listener() const { return listener_; }
  int64_t num_turned_away() const { return num_turned_away_; }

 private:
  struct Caller {
    FrameChannel channel;
    std::string address;
    Clock::time_point deadline;
    std::string statement;  // text that the caller must prove; empty until it has greeted
    bool proven = false;
  };

  void accept_all();
  bool advance(Caller& caller);  // false: the caller became a guest or was dropped
  bool answer(Caller& caller, const std::string& greeting);
  void drop(Caller& caller);
  void wait(Clock::time_point deadline) const;

  Socket listener_;
  Secret secret_;
  std::string purpose_;
  std::deque<Caller> callers_;
  std::deque<Admitted> admitted_;
  int64_t num_turned_away_ = 0;
};

}  // namespace gptrain::comm
