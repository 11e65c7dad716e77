// Groups over TCP, with one connection for each pair of ranks.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "comm/cable.h"
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
  // `cables`: one per rank of the group, this rank's own null. `stream`: the group's number in all of them.
  TcpTransport(std::vector<std::shared_ptr<Cable>> cables, int rank, int stream, bool outlives_peers)
      : cables_(std::move(cables)),
        rank_(rank),
        stream_(stream),
        outlives_peers_(outlives_peers),
        woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        sending_(cables_.size()),
        receiving_(cables_.size()) {
    if (!woken_) throw Error(ExitCode::machine, "cannot make an event for a group: {}", std::strerror(errno));
    for (const auto& cable : cables_)
      if (cable) cable->open(stream_, [this] { wake(); });
  }
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;
  ~TcpTransport() override { close_streams(); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(cables_.size()); }

  void exchange(std::span<const Message> messages) override {
    check_given_up();
    for (auto* flows : {&sending_, &receiving_})
      for (Flow& flow : *flows) {
        flow.messages.clear();
        flow.current = 0;
        flow.moved = 0;
      }
    for (const Message& message : messages) {
      Flow& flow = (message.sending ? sending_ : receiving_)[message.peer];
      if (message.sending && flow.messages.empty()) flow.header = {message.call, message.bytes};
      flow.messages.push_back(&message);
    }
    while (!advance_all()) wait();
  }

  void abort() override {
    given_up_ = true;
    close_streams();
    wake();
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
      done = done && sending_[index].done() && receiving_[index].done() &&
             (sending_[index].messages.empty() || cables_[index]->is_sent(stream_));
    }
    return done;
  }

  // Moves some bytes. Returns false if that would block.
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
    Cable& cable = *cables_[peer];
    const int64_t moved = sending ? cable.send(stream_, parts) : cable.receive(stream_, parts);
    if (moved == 0) return false;
    if (moved == Cable::gone) lose(peer, message.call);
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
    waiting_.assign(1, {woken_.descriptor(), POLLIN, 0});
    for (size_t peer = 0; peer < cables_.size(); ++peer) {
      const Flow &sending = sending_[peer], &receiving = receiving_[peer];
      if (sending.messages.empty() && receiving.messages.empty()) continue;
      const short events = cables_[peer]->events(stream_, !sending.done(), !receiving.done());
      if (events != 0) waiting_.push_back({cables_[peer]->descriptor(), events, 0});
    }
    poll(waiting_.data(), waiting_.size(), -1);
    uint64_t count = 0;
    if (waiting_.front().revents != 0) static_cast<void>(::read(woken_.descriptor(), &count, sizeof count));
  }

  void wake() const {
    const uint64_t one = 1;
    static_cast<void>(::write(woken_.descriptor(), &one, sizeof one));
  }

  void close_streams() const {
    for (const auto& cable : cables_)
      if (cable) cable->close(stream_);
  }

  void check_given_up() const {
    if (given_up_) throw PeerGone("this rank has given the group up");
  }

  [[noreturn]] void lose(int peer, const Call& call) {
    check_given_up();
    const std::string text =
        fmt::format("rank {} of a group closed its connection while rank {} was in {}", peer, rank_, describe(call));
    if (outlives_peers_) throw PeerGone(text);
    await_heartbeat();
    throw Error(ExitCode::device, "{}", text);
  }

  std::vector<std::shared_ptr<Cable>> cables_;
  int rank_;
  int stream_;
  bool outlives_peers_;
  Socket woken_;  // an event: another thread has read something for this group
  std::vector<Flow> sending_;
  std::vector<Flow> receiving_;
  std::vector<pollfd> waiting_;
  std::atomic<bool> given_up_ = false;
};

class TcpLinks final : public Links {
 public:
  TcpLinks(Rendezvous& rendezvous, int rank, double timeout_seconds, bool outlives_peers)
      : peers_(rendezvous.peers),
        key_(rendezvous.key),
        group_listener_(std::move(rendezvous.group_listener)),
        rank_(rank),
        timeout_(seconds_duration(timeout_seconds)),
        outlives_peers_(outlives_peers) {}

  // The first group of a pair of ranks connects them: the higher one calls the lower.
  std::unique_ptr<Transport> connect(const std::vector<int>& ranks, int rank_in_group, int index) override {
    const auto deadline = Clock::now() + timeout_;
    for (const int rank : ranks)
      if (rank < rank_ && !find(rank)) keep(rank, call(rank, deadline));
    for (const int rank : ranks)
      if (rank > rank_ && !find(rank)) keep(rank, await_call(rank, deadline));
    std::vector<std::shared_ptr<Cable>> cables;
    for (const int rank : ranks) cables.push_back(find(rank));
    return std::make_unique<TcpTransport>(std::move(cables), rank_in_group, index, outlives_peers_);
  }

  void drop(const std::vector<int>& lost) override {
    for (const int rank : lost)
      if (const auto cable = find(rank)) cable->cut();
  }
  void close(bool) override {}
  void end_process(bool) override { _exit(static_cast<int>(ExitCode::device)); }

 private:
  // Returns the connection to a rank; null if there is none, as to this rank itself.
  std::shared_ptr<Cable> find(int rank) {
    const std::lock_guard lock(mutex_);
    const auto found = cables_.find(rank);
    return found == cables_.end() ? nullptr : found->second;
  }

  void keep(int rank, Socket socket) {
    auto cable = std::make_shared<Cable>(std::move(socket));
    const std::lock_guard lock(mutex_);
    cables_[rank] = std::move(cable);
  }

  const Peer& self() const { return peers_[rank_]; }

  Socket call(int rank, Clock::time_point deadline) const {
    const Peer& peer = peers_[rank];
    PeerCall call =
        call_peer(peer, rank, self(), PeerPort::group, key_, json_text(Json{{"rank", rank_}}), {deadline, deadline});
    if (call.end == CallEnd::proven) return call.channel.take_socket();
    throw Error(ExitCode::device,
                "rank {} ({}) cannot connect to rank {} ({}) at any of its addresses: is there a "
                "firewall between them?",
                rank_, self().host, rank, peer.host);
  }

  // Returns the connection that `rank` makes. Keeps connections of others that arrive meanwhile.
  Socket await_call(int rank, Clock::time_point deadline) {
    while (!calls_.contains(rank)) {
      auto admitted = group_listener_.admit(deadline);
      if (!admitted)
        throw Error(ExitCode::device, "rank {} ({}) does not connect to rank {} ({})", rank, peers_[rank].host, rank_,
                    self().host);
      const auto caller =
          number_member(parse_json_or_discard(admitted->text), "rank", 0, static_cast<int64_t>(peers_.size()) - 1);
      if (caller) calls_[static_cast<int>(*caller)] = admitted->channel.take_socket();
    }
    Socket socket = std::move(calls_[rank]);
    calls_.erase(rank);
    return socket;
  }

  std::vector<Peer> peers_;
  Secret key_;
  SecureListener group_listener_;
  int rank_;
  Clock::duration timeout_;
  bool outlives_peers_;
  std::mutex mutex_;                              // guards cables_
  std::map<int, std::shared_ptr<Cable>> cables_;  // by rank
  std::map<int, Socket> calls_;                   // early connections by rank
};

}  // namespace

void await_heartbeat() { std::this_thread::sleep_for(std::chrono::seconds(3)); }

std::unique_ptr<Links> make_tcp_links(Rendezvous& rendezvous, int rank, double timeout_seconds, bool outlives_peers) {
  return std::make_unique<TcpLinks>(rendezvous, rank, timeout_seconds, outlives_peers);
}

}  // namespace gptrain::comm
