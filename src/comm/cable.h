// Connections that all groups of a pair of ranks share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <sys/uio.h>
#include <utility>
#include <vector>

#include "comm/socket.h"

namespace gptrain::inline comm {

// A connection to another rank, with a stream of bytes in each direction for each group of the two. Streams never wait
// for each other: a sender is at most window_bytes ahead of its receiver, and bytes that arrive for a stream
// while the thread of another one reads are kept until they are asked for. Thread-safe; no call waits, but close.
class Cable {
 public:
  explicit Cable(Socket socket) : socket_(std::move(socket)) {}
  ~Cable();
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;

  // Begins a stream. `wake` is called after another thread has read something of the stream from the connection.
  void open(int stream, std::function<void()> wake);
  // Ends a stream on both ranks: later calls with it return `gone`, on the peer once it has received everything.
  // Waits a moment where the connection is full.
  void close(int stream);

  // Most bytes that a sender is ahead of its receiver: more than a fast network holds on its way.
  static constexpr int64_t window_bytes = int64_t{1} << 20;
  static constexpr int64_t gone = -1;  // the peer has left, or an end of the stream is closed
  // Move bytes from or to `parts`. Return how many were moved: 0 if nothing can be moved now, or `gone`.
  int64_t send(int stream, std::span<const iovec> parts);
  int64_t receive(int stream, std::span<const iovec> parts);
  // Returns true if the system has taken all bytes that send() has.
  bool is_sent(int stream);
  // Returns the events of poll() for which a stream waits that still has to send or to receive; 0: none.
  short events(int stream, bool sending, bool receiving);
  int descriptor() const { return socket_.descriptor(); }
  // Cuts the connection, so that every stream finds the peer gone.
  void cut() const;

 private:
  // Header on the wire: `data` is followed by bytes of the stream, the other kinds are complete messages about it.
  struct Frame {
    enum class Kind : int32_t { data, credit, end };
    Kind kind = Kind::data;
    int32_t stream = 0;
    int64_t bytes = 0;  // data: bytes that follow; credit: further bytes that the sender may send
  };
  struct Stream {
    int64_t credit = window_bytes;  // bytes that may be sent now
    int64_t owed = 0;               // bytes received for which the peer has no new credit yet
    int64_t sent_until = 0;         // value of queued_ after the last byte sent
    std::vector<std::byte> early;   // received before they were asked for
    size_t early_begin = 0;
    std::function<void()> wake;
    bool is_ended_here = false;
    bool is_ended_by_peer = false;

    int64_t num_early() const { return static_cast<int64_t>(early.size() - early_begin); }
  };
  int64_t take_input(int wanted, std::span<const iovec> parts);
  int64_t take_early(int number, std::span<const iovec> parts);
  bool take_header(int wanted);
  int64_t read(std::span<iovec> into);
  void note_received(int number, int64_t bytes);
  bool flush();
  bool failed_to_write();
  void lose();
  void wake_all();

  mutable std::mutex mutex_;
  Socket socket_;
  bool can_read_ = true;
  bool can_write_ = true;
  std::map<int, Stream> streams_;
  std::vector<Frame> notices_;     // to be sent before anything else
  std::vector<std::byte> unsent_;  // rest of a frame that the system did not take whole
  size_t unsent_begin_ = 0;
  int64_t queued_ = 0;   // bytes given to the connection so far, frames included
  int64_t written_ = 0;  // bytes of these that the system has taken
  Frame header_;         // header of the frame that arrives
  size_t header_bytes_ = 0;
  int64_t left_ = 0;  // bytes of the frame that have not arrived
};

}  // namespace gptrain::comm
