// TCP for the start of a run, for its heartbeats, and for collectives without MPI.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gptrain {

using Clock = std::chrono::steady_clock;
Clock::duration seconds_duration(double seconds);

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int descriptor() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  void close();

 private:
  int release();
  int descriptor_ = -1;
};

// Listens at that numeric address of this machine, or, if it is empty, on every interface; port 0: any free one.
// Error(device) if the port is taken.
Socket listen_on(int port, const std::string& address = "");
int port_of(const Socket& listener);

struct Accepted {
  Socket socket;
  std::string address;  // of the peer, numeric
};
// The next connection; nothing if none comes before the deadline.
std::optional<Accepted> accept_from(const Socket& listener, Clock::time_point deadline);

// One attempt at each address of that host (a name or a number), given up at the deadline. Nothing if there is none.
std::optional<Socket> connect_to(const std::string& host, int port, Clock::time_point deadline);

// Why that name has no address here, in the resolver's words; empty if it has one.
std::string why_unresolved(const std::string& host);

// The numeric address of this machine from which that host is reached; empty if there is none.
std::string address_towards(const std::string& host);

// Numeric addresses of that interface ("eth0"), or the address itself if it is one of this machine's; none if there is
// no such interface.
std::vector<std::string> addresses_of_interface(const std::string& name_or_address);

// Numeric addresses of this machine's interfaces, loopback left out.
std::vector<std::string> interface_addresses();

// Waits until the socket can be read (or written), or the deadline has passed; false then.
bool wait_readable(const Socket& socket, Clock::time_point deadline);
bool wait_writable(const Socket& socket, Clock::time_point deadline);

// What a frame may hold: of one who has proved nothing yet, of a rank, and of rank 0 with the table of all ranks, in
// which a hundred thousand fit.
constexpr size_t most_stranger_bytes = 4096;
constexpr size_t max_frame_bytes = 1'000'000;
constexpr size_t max_table_bytes = size_t{64} << 20;

// Frames of text over a connection: "GPTR", the length as 4 bytes, least first, and the text. What is no such frame, or
// is larger than was agreed, counts as the end of the connection. No more than one frame is kept that nobody has taken.
class FrameChannel {
 public:
  explicit FrameChannel(Socket socket, size_t most_bytes = max_frame_bytes)
      : socket_(std::move(socket)), most_bytes_(most_bytes) {}

  const Socket& socket() const { return socket_; }
  Socket take_socket() { return std::move(socket_); }
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_.close(); }
  void take_frames_up_to(size_t bytes) { most_bytes_ = bytes; }

  // False, and the channel is closed, if the frame could not be sent before the deadline.
  bool send(std::string_view text, Clock::time_point deadline);
  // Takes in what has arrived. The channel closes when the peer has closed it.
  void read_available();
  // Takes in what has arrived of the next frame, and no byte beyond it, so that the socket may be taken for something
  // else.
  void read_one_frame();
  // The next frame that has been read.
  std::optional<std::string> next_frame();
  // The next frame, waiting for it; nothing if the peer closed or the deadline passed. Reads no byte beyond it, so that
  // the socket may be taken for something else.
  std::optional<std::string> receive(Clock::time_point deadline);

 private:
  bool broken() const;
  size_t missing_bytes() const;  // of the frame that begins bytes_, as far as is known; 0: it is complete or broken
  bool read_some(size_t limit);

  Socket socket_;
  size_t most_bytes_ = max_frame_bytes;
  std::string bytes_;  // read, not yet taken
};

}  // namespace gptrain
