#include "comm/cable.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

namespace gptrain::inline comm {
namespace {

// Most bytes of a frame. The rest of a frame that the system does not take whole is copied.
constexpr int64_t most_frame_bytes = int64_t{64} << 10;
// Time to tell the peer about the end of a stream where the connection is full.
constexpr std::chrono::milliseconds closing_time(100);

constexpr size_t most_parts = 4;

// The first `bytes` of some parts of memory.
class Parts {
 public:
  Parts(std::span<const iovec> parts, int64_t bytes) {
    for (const iovec& part : parts) {
      if (bytes == 0 || count_ == most_parts) break;
      const int64_t taken = std::min(bytes, static_cast<int64_t>(part.iov_len));
      if (taken > 0) add({part.iov_base, static_cast<size_t>(taken)});
      bytes -= taken;
    }
  }
  explicit Parts(iovec first) { add(first); }
  void add(const Parts& others) {
    for (size_t i = 0; i < others.count_; ++i) add(others.parts_[i]);
  }
  std::span<iovec> list() { return {parts_, count_}; }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < count_; ++i) bytes += static_cast<int64_t>(parts_[i].iov_len);
    return bytes;
  }
  // Appends everything behind the first `skipped` bytes to `out`.
  void append_after(int64_t skipped, std::vector<std::byte>& out) const {
    for (size_t i = 0; i < count_; ++i) {
      const auto* from = static_cast<const std::byte*>(parts_[i].iov_base);
      const auto length = static_cast<int64_t>(parts_[i].iov_len);
      const int64_t passed = std::min(skipped, length);
      out.insert(out.end(), from + passed, from + length);
      skipped -= passed;
    }
  }

 private:
  void add(iovec part) { parts_[count_++] = part; }

  iovec parts_[most_parts + 1] = {};
  size_t count_ = 0;
};

}  // namespace

Cable::~Cable() {
  // Closing a socket with unread input resets the connection, and the peer may lose bytes that it has not read yet.
  ::shutdown(descriptor(), SHUT_WR);
  std::byte ignored[4096];
  while (::recv(descriptor(), ignored, sizeof ignored, MSG_DONTWAIT) > 0) {
  }
}

void Cable::cut() const { ::shutdown(descriptor(), SHUT_RDWR); }

void Cable::open(int stream, std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  streams_[stream].wake = std::move(wake);
}

void Cable::close(int stream) {
  {
    const std::lock_guard lock(mutex_);
    Stream& own = streams_[stream];
    own.wake = nullptr;
    if (std::exchange(own.is_ended_here, true)) return;
    own.early.clear();
    own.early_begin = 0;
    if (!own.is_ended_by_peer) notices_.push_back({Frame::Kind::end, stream, 0});
  }
  const auto deadline = Clock::now() + closing_time;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (flush()) return;
      if (Clock::now() > deadline) return lose();
    }
    wait_writable(socket_, deadline);
  }
}

int64_t Cable::send(int stream, std::span<const iovec> parts) {
  const std::lock_guard lock(mutex_);
  Stream& own = streams_[stream];
  if (own.credit == 0) take_input(stream, {});
  if (own.is_ended_here || own.is_ended_by_peer) return gone;
  if (!flush()) return 0;
  if (!can_write_) return gone;
  Parts taken(parts, std::min(own.credit, most_frame_bytes));
  const int64_t bytes = taken.bytes();
  if (bytes == 0) return 0;
  Frame frame{Frame::Kind::data, stream, bytes};
  Parts all(iovec{&frame, sizeof frame});
  all.add(taken);
  msghdr message{};
  message.msg_iov = all.list().data();
  message.msg_iovlen = all.list().size();
  const ssize_t written = ::sendmsg(descriptor(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (written < 0) return failed_to_write() ? gone : 0;
  all.append_after(written, unsent_);
  written_ += written;
  queued_ += all.bytes();
  own.sent_until = queued_;
  own.credit -= bytes;
  return bytes;
}

int64_t Cable::receive(int stream, std::span<const iovec> parts) {
  const std::lock_guard lock(mutex_);
  flush();
  Stream& own = streams_[stream];
  if (own.num_early() > 0) return take_early(stream, parts);
  if (own.is_ended_here) return gone;
  const int64_t bytes = own.is_ended_by_peer ? 0 : take_input(stream, parts);
  return bytes == 0 && (!can_read_ || own.is_ended_by_peer) ? gone : bytes;
}

int64_t Cable::take_early(int number, std::span<const iovec> parts) {
  Stream& stream = streams_[number];
  Parts into(parts, stream.num_early());
  for (const iovec& part : into.list()) {
    std::memcpy(part.iov_base, stream.early.data() + stream.early_begin, part.iov_len);
    stream.early_begin += part.iov_len;
  }
  if (stream.num_early() == 0) {
    stream.early.clear();
    stream.early_begin = 0;
  }
  note_received(number, into.bytes());
  return into.bytes();
}

// Lets the peer send as much more, in portions.
void Cable::note_received(int number, int64_t bytes) {
  Stream& stream = streams_[number];
  stream.owed += bytes;
  if (stream.owed < window_bytes / 2) return;
  notices_.push_back({Frame::Kind::credit, number, std::exchange(stream.owed, 0)});
  flush();
}

bool Cable::is_sent(int stream) {
  const std::lock_guard lock(mutex_);
  flush();
  return !can_write_ || written_ >= streams_[stream].sent_until;
}

short Cable::events(int stream, bool sending, bool receiving) {
  const std::lock_guard lock(mutex_);
  const Stream& own = streams_[stream];
  const bool lacks_credit = sending && own.credit == 0;
  const bool writes =
      (sending && !lacks_credit) || !notices_.empty() || written_ < own.sent_until || (receiving && !unsent_.empty());
  return static_cast<short>((receiving || lacks_credit ? POLLIN : 0) | (writes ? POLLOUT : 0));
}

// Reads the input that has arrived until some of the stream `wanted` is in `parts`, and returns its bytes, or until
// nothing is left: 0. Bytes of other streams, and without parts all bytes, are kept.
int64_t Cable::take_input(int wanted, std::span<const iovec> parts) {
  while (can_read_) {
    if (left_ == 0) {
      if (!take_header(wanted)) return 0;
      continue;
    }
    Stream& stream = streams_[header_.stream];
    const bool is_wanted = header_.stream == wanted;
    if (is_wanted && !parts.empty()) {
      const int64_t bytes = read(Parts(parts, left_).list());
      if (bytes == 0) return 0;
      left_ -= bytes;
      note_received(wanted, bytes);
      return bytes;
    }
    std::vector<std::byte> ignored;
    std::vector<std::byte>& buffer = stream.is_ended_here ? ignored : stream.early;
    const size_t before = buffer.size();
    buffer.resize(before + static_cast<size_t>(left_));
    iovec tail{buffer.data() + before, static_cast<size_t>(left_)};
    const int64_t bytes = read({&tail, 1});
    buffer.resize(before + static_cast<size_t>(bytes));
    if (bytes == 0) return 0;
    left_ -= bytes;
    if (!is_wanted && stream.wake) stream.wake();
  }
  return 0;
}

// Reads the header of the next frame. Returns false if it is not there yet, or the connection is lost.
bool Cable::take_header(int wanted) {
  iovec rest{reinterpret_cast<std::byte*>(&header_) + header_bytes_, sizeof header_ - header_bytes_};
  const int64_t bytes = read({&rest, 1});
  header_bytes_ += static_cast<size_t>(bytes);
  if (bytes == 0 || header_bytes_ < sizeof header_) return false;
  header_bytes_ = 0;
  Stream& stream = streams_[header_.stream];
  switch (header_.kind) {
    case Frame::Kind::data:
      if (header_.bytes < 0 || header_.bytes + stream.num_early() > window_bytes) lose();
      left_ = header_.bytes;
      return can_read_;
    case Frame::Kind::credit:
      stream.credit += header_.bytes;
      break;
    case Frame::Kind::end:
      stream.is_ended_by_peer = true;
      break;
  }
  if (header_.stream != wanted && stream.wake) stream.wake();
  return true;
}

// Returns the number of bytes read; 0 if nothing is there, or the connection is lost.
int64_t Cable::read(std::span<iovec> into) {
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  const ssize_t bytes = ::recvmsg(descriptor(), &message, MSG_DONTWAIT);
  if (bytes > 0) return bytes;
  if (bytes == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
    can_read_ = false;
    wake_all();
  }
  return 0;
}

// Writes the bytes that wait to be written. Returns true if nothing is left, or nothing can be written any more.
bool Cable::flush() {
  while (can_write_) {
    if (unsent_.empty()) {
      if (notices_.empty()) return true;
      const auto* first = reinterpret_cast<const std::byte*>(notices_.data());
      unsent_.assign(first, first + notices_.size() * sizeof(Frame));
      queued_ += static_cast<int64_t>(unsent_.size());
      notices_.clear();
    }
    const ssize_t bytes = ::send(descriptor(), unsent_.data() + unsent_begin_, unsent_.size() - unsent_begin_,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (bytes < 0 && !failed_to_write()) return false;
    if (bytes < 0) return true;
    written_ += bytes;
    unsent_begin_ += static_cast<size_t>(bytes);
    if (unsent_begin_ == unsent_.size()) {
      unsent_.clear();
      unsent_begin_ = 0;
    }
  }
  return true;
}

// Returns false if a write that failed is to be made again later. The peer may be gone, and have sent the rest before.
bool Cable::failed_to_write() {
  if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK) return false;
  can_write_ = false;
  wake_all();
  return true;
}

void Cable::lose() {
  can_read_ = can_write_ = false;
  ::shutdown(descriptor(), SHUT_RDWR);
  wake_all();
}

void Cable::wake_all() {
  for (auto& [number, stream] : streams_)
    if (stream.wake) stream.wake();
}

}  // namespace gptrain::comm
