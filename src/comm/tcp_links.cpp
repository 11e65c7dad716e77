// Groups over TCP, with one socket for each pair of ranks and group.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "comm/frames.h"
#include "comm/links.h"

namespace gptrain::inline comm {
namespace {

using Json = nlohmann::json;

// Precedes every message. Sent as it lies in memory: all processes are the same build on the same instruction set.
struct Header {
  Call call;
  int64_t bytes = 0;
};

// Messages of one exchange between this rank and a peer, in one direction.
struct Flow {
  std::vector<const Message*> messages;
  size_t current = 0;
  Header header;      // header of the current message
  int64_t moved = 0;  // bytes moved of the current message, header included

  bool done() const { return current == messages.size(); }
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::vector<Socket> sockets, int rank)
      : sockets_(std::move(sockets)), rank_(rank), sending_(sockets_.size()), receiving_(sockets_.size()) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(sockets_.size()); }

  void exchange(std::span<const Message> messages) override {
    check_given_up();
    for (auto* flows : {&sending_, &receiving_})
      for (Flow& flow : *flows) {
        flow.messages.clear();
        flow.current = 0;
        flow.moved = 0;
      }
    for (const Message& message : messages) {
      Flow& flow = (message.sending ? sending_ : receiving_)[static_cast<size_t>(message.peer)];
      if (message.sending && flow.messages.empty()) flow.header = {message.call, message.bytes};
      flow.messages.push_back(&message);
    }
    while (!advance_all()) wait();
  }

  void abort() override {
    given_up_ = true;
    for (const Socket& socket : sockets_)
      if (socket) shutdown(socket.descriptor(), SHUT_RDWR);
  }

 private:
  // Moves all that can be moved without waiting. Returns true when everything is done.
  bool advance_all() {
    bool done = true;
    for (int peer = 0; peer < size(); ++peer) {
      const auto index = static_cast<size_t>(peer);
      while (!sending_[index].done() && advance(sending_[index], peer, true)) {
      }
      while (!receiving_[index].done() && advance(receiving_[index], peer, false)) {
      }
      done = done && sending_[index].done() && receiving_[index].done();
    }
    return done;
  }

  // Makes one system call. Returns false if it would block.
  bool advance(Flow& flow, int peer, bool sending) {
    const Message& message = *flow.messages[flow.current];
    constexpr int64_t header_bytes = sizeof(Header);
    const int64_t header_moved = std::min(flow.moved, header_bytes);
    const int64_t payload_moved = flow.moved - header_moved;
    const void* payload = sending ? message.in : message.out;
    iovec parts[2] = {
        {reinterpret_cast<std::byte*>(&flow.header) + header_moved, static_cast<size_t>(header_bytes - header_moved)},
        {const_cast<std::byte*>(static_cast<const std::byte*>(payload)) + payload_moved,
         static_cast<size_t>(message.bytes - payload_moved)}};
    msghdr header{};
    header.msg_iov = parts;
    header.msg_iovlen = message.bytes > 0 ? 2 : 1;
    const int socket = sockets_[static_cast<size_t>(peer)].descriptor();
    const ssize_t moved =
        sending ? sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) : recvmsg(socket, &header, MSG_DONTWAIT);
    if (moved < 0 && errno == EINTR) return true;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (moved <= 0) lose(peer, message.call);
    const bool had_header = flow.moved >= header_bytes;
    flow.moved += moved;
    if (!sending && !had_header && flow.moved >= header_bytes)
      check_arrival(flow.header.call, flow.header.bytes, message, rank_);
    if (flow.moved == header_bytes + message.bytes) {
      flow.moved = 0;
      ++flow.current;
      if (sending && !flow.done())
        flow.header = {flow.messages[flow.current]->call, flow.messages[flow.current]->bytes};
    }
    return true;
  }

  void wait() {
    waiting_.clear();
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      const int events = (sending_[peer].done() ? 0 : POLLOUT) | (receiving_[peer].done() ? 0 : POLLIN);
      if (events != 0) waiting_.push_back({sockets_[peer].descriptor(), static_cast<short>(events), 0});
    }
    poll(waiting_.data(), waiting_.size(), -1);
  }

  void check_given_up() const {
    if (given_up_) throw PeerGone("this rank has given the group up");
  }

  [[noreturn]] void lose(int peer, const Call& call) {
    check_given_up();
    await_heartbeat();
    throw Error(ExitCode::device, "rank {} of a group closed its connection while rank {} was in {}", peer, rank_,
                describe(call));
  }

  std::vector<Socket> sockets_;  // one per rank, this rank's own closed
  int rank_;
  std::vector<Flow> sending_;
  std::vector<Flow> receiving_;
  std::vector<pollfd> waiting_;
  std::atomic<bool> given_up_ = false;
};

class TcpLinks final : public Links {
 public:
  TcpLinks(Meeting& meeting, int rank, double timeout_seconds)
      : peers_(meeting.peers),
        key_(meeting.key),
        gate_(std::move(meeting.group_gate)),
        rank_(rank),
        timeout_(seconds_duration(timeout_seconds)) {}

  // In each pair of ranks the higher one connects to the lower.
  std::unique_ptr<Transport> connect(const std::vector<int>& ranks, int place, int index) override {
    const auto deadline = Clock::now() + timeout_;
    std::vector<Socket> sockets(ranks.size());
    const std::string greeting = json_text(Json{{"group", index}, {"rank", rank_}});
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] >= rank_) continue;
      const Peer& peer = peers_[static_cast<size_t>(ranks[i])];
      PeerCall call = call_peer(peer, ranks[i], self(), PeerPort::group, key_, greeting, {deadline, deadline});
      if (call.end != CallEnd::proven)
        throw Error(ExitCode::device,
                    "rank {} ({}) cannot connect to rank {} ({}) at any of its addresses: is there a "
                    "firewall between them?",
                    rank_, self().host, ranks[i], peer.host);
      sockets[i] = call.channel.take_socket();
    }
    for (size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i] > rank_) sockets[i] = await_call(ranks[i], index, deadline);
    return std::make_unique<TcpTransport>(std::move(sockets), place);
  }

  void close(bool) override {}
  void end_process(bool) override { _exit(static_cast<int>(ExitCode::device)); }

 private:
  const Peer& self() const { return peers_[static_cast<size_t>(rank_)]; }

  // Returns the connection that `rank` makes for `group`. Keeps connections of others that arrive meanwhile.
  Socket await_call(int rank, int group, Clock::time_point deadline) {
    const std::pair wanted{group, rank};
    while (!calls_.contains(wanted)) {
      auto guest = gate_.admit(deadline);
      if (!guest)
        throw Error(ExitCode::device, "rank {} ({}) does not connect to rank {} ({}) for group {}", rank,
                    peers_[static_cast<size_t>(rank)].host, rank_, self().host, group);
      const Json greeting = parse_json_or_discard(guest->text);
      const auto number = number_member(greeting, "group", 0, std::numeric_limits<int>::max());
      const auto caller = number_member(greeting, "rank", 0, static_cast<int64_t>(peers_.size()) - 1);
      if (number && caller)
        calls_[{static_cast<int>(*number), static_cast<int>(*caller)}] = guest->channel.take_socket();
    }
    Socket socket = std::move(calls_[wanted]);
    calls_.erase(wanted);
    return socket;
  }

  std::vector<Peer> peers_;
  Secret key_;
  Gate gate_;
  int rank_;
  Clock::duration timeout_;
  std::map<std::pair<int, int>, Socket> calls_;  // early connections by (group, rank)
};

}  // namespace

void await_heartbeat() { std::this_thread::sleep_for(std::chrono::seconds(3)); }

std::unique_ptr<Links> make_tcp_links(Meeting& meeting, int rank, double timeout_seconds) {
  return std::make_unique<TcpLinks>(meeting, rank, timeout_seconds);
}

}  // namespace gptrain::comm
