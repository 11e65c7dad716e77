#include "comm/socket.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

namespace gptrain::inline comm {
namespace {

constexpr char frame_magic[4] = {'G', 'P', 'T', 'R'};
constexpr size_t frame_header_bytes = sizeof frame_magic + sizeof(uint32_t);

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

bool wait_for(const Socket& socket, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd waiting{socket.descriptor(), events, 0};
    const int ready = poll(&waiting, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

void set_option(int descriptor, int level, int option, int value) {
  setsockopt(descriptor, level, option, &value, sizeof value);
}

std::string numeric_address(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  // An IPv4 peer, as a listener for both families shows it.
  constexpr std::string_view mapped = "::ffff:";
  return std::string_view(text).substr(0, mapped.size()) == mapped ? text + mapped.size() : text;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Resolves a host. Returns an empty list and sets `fault` to one of getaddrinfo's codes if it has no address.
AddressList resolve(const std::string& host, int port, int& fault) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  fault = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {fault == 0 ? found : nullptr, &freeaddrinfo};
}

// Returns the length of the frame that `bytes` begins with. REQUIRES: a whole header.
uint32_t frame_length(const std::string& bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < sizeof length; ++i)
    length |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[sizeof frame_magic + i])) << (8 * i);
  return length;
}

}  // namespace

Clock::duration seconds_duration(double seconds) {
  constexpr double for_ever = 1e9;  // seconds; clocks overflow at about ten times this
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, for_ever)));
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.release();
  }
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(release());
}

int Socket::release() { return std::exchange(descriptor_, -1); }

namespace {

// Binds and listens. Returns an empty socket, with errno set, on failure.
Socket try_listening(const sockaddr* address, socklen_t length) {
  Socket listener(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return {};
  set_option(listener.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address->sa_family == AF_INET6) set_option(listener.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(listener.descriptor(), address, length) == 0 && listen(listener.descriptor(), SOMAXCONN) == 0)
    return listener;
  const int error = errno;
  listener.close();
  errno = error;
  return {};
}

Socket try_listening_everywhere(int port) {
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_port = htons(static_cast<uint16_t>(port));
  Socket listener = try_listening(reinterpret_cast<const sockaddr*>(&any6), sizeof any6);
  // A machine without IPv6 cannot open IPv6 sockets.
  if (listener || (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT)) return listener;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  return try_listening(reinterpret_cast<const sockaddr*>(&any), sizeof any);
}

}  // namespace

Socket listen_on(int port, const std::string& address) {
  Socket listener;
  if (address.empty()) {
    listener = try_listening_everywhere(port);
  } else {
    int fault = 0;
    const AddressList found = resolve(address, port, fault);
    errno = EADDRNOTAVAIL;
    if (found != nullptr) listener = try_listening(found->ai_addr, found->ai_addrlen);
  }
  if (listener) return listener;
  const int error = errno;
  throw Error(ExitCode::device, "cannot listen on port {}: {} ({})", port, std::strerror(error),
              error == EADDRINUSE || address.empty() ? "is another run or a launcher using it?" : "at " + address);
}

std::string address_towards(const std::string& host) {
  int fault = 0;
  constexpr int any_port = 9;  // nothing is sent to this port
  const AddressList addresses = resolve(host, any_port, fault);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const Socket probe(socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe || connect(probe.descriptor(), address->ai_addr, address->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (getsockname(probe.descriptor(), reinterpret_cast<sockaddr*>(&own), &length) == 0)
      return numeric_address(reinterpret_cast<const sockaddr*>(&own), length);
  }
  return "";
}

int port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::optional<Accepted> accept_from(const Socket& listener, Clock::time_point deadline) {
  while (wait_readable(listener, deadline)) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    Socket socket(
        accept4(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) return std::nullopt;
    if (!socket) continue;  // the caller has gone again
    set_option(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
    return Accepted{std::move(socket), numeric_address(reinterpret_cast<const sockaddr*>(&address), length)};
  }
  return std::nullopt;
}

std::optional<Socket> connect_to(const std::string& host, int port, Clock::time_point deadline) {
  int fault = 0;
  const AddressList addresses = resolve(host, port, fault);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket candidate(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!candidate) continue;
    if (connect(candidate.descriptor(), address->ai_addr, address->ai_addrlen) != 0) {
      if (errno != EINPROGRESS || !wait_writable(candidate, deadline)) continue;
      socklen_t length = sizeof fault;
      getsockopt(candidate.descriptor(), SOL_SOCKET, SO_ERROR, &fault, &length);
      if (fault != 0) continue;
    }
    set_option(candidate.descriptor(), IPPROTO_TCP, TCP_NODELAY, 1);
    return candidate;
  }
  return std::nullopt;
}

std::string why_unresolved(const std::string& host) {
  int fault = 0;
  resolve(host, 0, fault);
  if (fault == 0) return "";
  return fault == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(fault);
}

namespace {

struct InterfaceAddress {
  std::string interface;
  std::string address;
  bool loopback;
};

std::vector<InterfaceAddress> all_interface_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    addresses.push_back(
        {entry->ifa_name, numeric_address(entry->ifa_addr, length), (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return addresses;
}

}  // namespace

std::vector<std::string> addresses_of_interface(const std::string& name_or_address) {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& entry : all_interface_addresses())
    if (entry.interface == name_or_address || entry.address == name_or_address) addresses.push_back(entry.address);
  return addresses;
}

std::vector<std::string> interface_names() {
  std::set<std::string> names;
  for (const InterfaceAddress& entry : all_interface_addresses()) names.insert(entry.interface);
  return {names.begin(), names.end()};
}

std::vector<std::string> interface_addresses() {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& entry : all_interface_addresses())
    if (!entry.loopback) addresses.push_back(entry.address);
  return addresses;
}

bool wait_readable(const Socket& socket, Clock::time_point deadline) { return wait_for(socket, POLLIN, deadline); }
bool wait_writable(const Socket& socket, Clock::time_point deadline) { return wait_for(socket, POLLOUT, deadline); }

bool FrameChannel::send(std::string_view text, Clock::time_point deadline) {
  std::string frame(frame_magic, sizeof frame_magic);
  for (int shift = 0; shift < 32; shift += 8) frame.push_back(static_cast<char>(text.size() >> shift & 0xffU));
  frame += text;
  for (size_t sent = 0; open() && sent < frame.size();) {
    const ssize_t n = ::send(socket_.descriptor(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno != EINTR && (errno != EAGAIN || !wait_writable(socket_, deadline))) {
      close();
    }
  }
  return open();
}

// Reads once. Returns false if no more can be read now.
bool FrameChannel::read_some(size_t limit) {
  char buffer[16384];
  const ssize_t n = recv(socket_.descriptor(), buffer, std::min(limit, sizeof buffer), 0);
  if (n > 0) {
    bytes_.append(buffer, n);
    return true;
  }
  if (n < 0 && errno == EINTR) return true;
  if (n == 0 || errno != EAGAIN) close();
  return false;
}

void FrameChannel::read_available() {
  const size_t most = frame_header_bytes + most_bytes_;
  while (open() && bytes_.size() < most && read_some(most - bytes_.size())) {
  }
}

void FrameChannel::read_one_frame() {
  while (open() && !broken() && missing_bytes() > 0 && read_some(missing_bytes())) {
  }
}

// Returns true if the received bytes are not a frame, or too large a frame.
bool FrameChannel::broken() const {
  if (bytes_.size() < frame_header_bytes) return false;
  return std::memcmp(bytes_.data(), frame_magic, sizeof frame_magic) != 0 || frame_length(bytes_) > most_bytes_;
}

size_t FrameChannel::missing_bytes() const {
  if (bytes_.size() < frame_header_bytes) return frame_header_bytes - bytes_.size();
  const size_t whole = frame_header_bytes + frame_length(bytes_);
  return whole > bytes_.size() ? whole - bytes_.size() : 0;
}

std::optional<std::string> FrameChannel::next_frame() {
  if (bytes_.size() < frame_header_bytes) return std::nullopt;
  const uint32_t length = frame_length(bytes_);
  if (broken()) {
    close();
    bytes_.clear();
    return std::nullopt;
  }
  if (missing_bytes() > 0) return std::nullopt;
  std::string text = bytes_.substr(frame_header_bytes, length);
  bytes_.erase(0, frame_header_bytes + length);
  return text;
}

std::optional<std::string> FrameChannel::receive(Clock::time_point deadline) {
  for (;;) {
    if (auto frame = next_frame()) return frame;
    if (!open() || !wait_readable(socket_, deadline)) return std::nullopt;
    read_some(missing_bytes());
  }
}

}  // namespace gptrain::comm
