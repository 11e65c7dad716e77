// TCP sockets for the start of a run, for heartbeats, and for collectives without MPI. Their descriptors
// are non-blocking; functions with a deadline wait until then.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gptrain::inline comm {

using Clock = std::chrono::steady_clock;
Clock::duration seconds_duration(double seconds);  // at most 1e9 seconds

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

// Listens at a numeric address of this machine; empty: on all interfaces. Port 0: any free port. THROWS Error(device)
// if that fails, as it does where the port is taken.
Socket listen_on(int port, const std::string& address = "");
int port_of(const Socket& listener);  // the port at which it listens

struct Accepted {
  Socket socket;
  std::string address;  // the peer's, numeric
};
// Returns the next connection; nullopt if none arrives by the deadline, or if the process or the system lacks files or
// memory for it.
std::optional<Accepted> accept_from(const Socket& listener, Clock::time_point deadline);

// Tries each address of `host` (a name or number) once, until the deadline; looking up a name may take longer. Returns
// nullopt if none connects.
std::optional<Socket> connect_to(const std::string& host, int port, Clock::time_point deadline);

// Returns the resolver's reason why `host` has no address; empty if it has one.
std::string why_unresolved(const std::string& host);

// Returns this machine's numeric address that reaches `host`; empty if none does.
std::string address_towards(const std::string& host);

// Returns the numeric addresses of an interface ("eth0") that is up, or the address itself if it belongs to this
// machine; none if there is no such interface.
std::vector<std::string> addresses_of_interface(const std::string& name_or_address);

// Returns the names of this machine's interfaces that are up, each once.
std::vector<std::string> interface_names();

// Returns the numeric addresses of this machine's interfaces that are up, without the loopback.
std::vector<std::string> interface_addresses();

// Return true when the socket can be read (or written), false at the deadline.
bool wait_readable(const Socket& socket, Clock::time_point deadline);
bool wait_writable(const Socket& socket, Clock::time_point deadline);

// Limits of a frame's text in bytes: from a caller that has proved nothing, from a rank, and from rank 0 with the table
// of all ranks (enough for a hundred thousand).
constexpr size_t most_stranger_bytes = 4096;
constexpr size_t max_frame_bytes = 1'000'000;
constexpr size_t max_table_bytes = size_t{64} << 20;

// Frames of text over a connection: "GPTR", the length as 4 bytes (little-endian), and the text. Anything else, or a
// frame above the size limit, counts as the end of the connection. Buffers at most as many bytes as one frame of that
// size.
class FrameChannel {
 public:
  explicit FrameChannel(Socket socket, size_t most_bytes = max_frame_bytes)
      : socket_(std::move(socket)), most_bytes_(most_bytes) {}

  const Socket& socket() const { return socket_; }
  Socket take_socket() { return std::move(socket_); }
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_.close(); }
  void take_frames_up_to(size_t bytes) { most_bytes_ = bytes; }

  // Sends a frame. Returns false and closes the channel if the peer is gone, or this system has not taken all of it by
  // the deadline. True does not mean that the peer has received the frame.
  bool send(std::string_view text, Clock::time_point deadline);
  // Reads data that have arrived, as far as the buffer has room. If the peer has closed the connection, closes the
  // channel once all data before that are read; next_frame still returns their frames.
  void read_available();
  // Reads data of the next frame that have arrived, and no byte beyond it, so that the socket can be handed over.
  void read_one_frame();
  // Returns the next frame that has been read; nullopt if there is none.
  std::optional<std::string> next_frame();
  // Waits for the next frame; nullopt if the peer closes, or at the deadline (the channel then stays open). Reads no
  // byte beyond the frame, so that the socket can be handed over.
  std::optional<std::string> receive(Clock::time_point deadline);

 private:
  bool broken() const;
  size_t missing_bytes() const;  // bytes missing from the frame in bytes_, as far as known; 0: complete or broken
  bool read_some(size_t limit);

  Socket socket_;
  size_t most_bytes_ = max_frame_bytes;
  std::string bytes_;  // read but not taken yet
};

}  // namespace gptrain::comm
