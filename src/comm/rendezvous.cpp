#include "comm/rendezvous.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/version.h"

namespace gptrain {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

constexpr auto retry_interval = 100ms;
constexpr auto answer_grace = 5s;      // past the deadline, for rank 0's verdict to arrive
constexpr auto latecomers_grace = 2s;  // once it is clear that the run cannot start
constexpr size_t max_listed = 8;       // ranks in one message

Json to_json(const Peer& peer) {
  return {{"host", peer.host},
          {"machine", peer.machine},
          {"addresses", peer.addresses},
          {"heartbeat_port", peer.heartbeat_port},
          {"group_port", peer.group_port}};
}

Peer peer_from(const Json& json) {
  return {json.at("host"), json.at("machine"), json.at("addresses"), json.at("heartbeat_port"), json.at("group_port")};
}

Peer describe_self(const Launch& launch, const Meeting& meeting) {
  // Containers of one machine share the boot's id, but not the network.
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return {launch.host, launch.host + "/" + boot, interface_addresses(), port_of(meeting.heartbeat_listener),
          port_of(meeting.group_listener)};
}

std::string listed(const std::vector<std::string>& items, const char* separator) {
  std::string text;
  for (size_t i = 0; i < items.size() && i < max_listed; ++i) {
    if (i > 0) text += separator;
    text += items[i];
  }
  if (items.size() > max_listed) text += fmt::format("{}and {} more", separator, items.size() - max_listed);
  return text;
}

// The lines of `text` that `other` lacks.
std::vector<std::string> lines_missing_in(const std::string& other, const std::string& text) {
  const auto lines_of = [](const std::string& whole) {
    std::vector<std::string> lines;
    std::istringstream stream(whole);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  };
  const std::vector<std::string> known = lines_of(other);
  std::vector<std::string> missing = lines_of(text);
  std::erase_if(missing,
                [&](const std::string& line) { return std::find(known.begin(), known.end(), line) != known.end(); });
  return missing;
}

// At most three, and how many more there are.
std::string first_lines(std::vector<std::string> lines) {
  constexpr size_t most = 3;
  if (lines.empty()) return "without that";
  const size_t more = lines.size() - std::min(lines.size(), most);
  lines.resize(lines.size() - more);
  return listed(lines, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

// Rank 0's side: one entry per rank that has come.
class Assembly {
 public:
  Assembly(const Launch& launch, Meeting& meeting, const std::vector<Fact>& facts)
      : launch_(launch), meeting_(meeting), facts_(facts), came_(static_cast<size_t>(launch.size)) {
    meeting_.peers.resize(came_.size());
    for (size_t rank = 0; rank < came_.size(); ++rank) meeting_.channels.emplace_back(Socket());
    came_[0] = true;
  }

  bool complete() const { return std::find(came_.begin(), came_.end(), false) == came_.end(); }
  bool faulty() const { return !faults_.empty(); }

  void arrive(FrameChannel channel, const std::string& address, const std::string& text) {
    const Json hello = Json::parse(text, nullptr, false);
    if (!hello.is_object() || hello.value("kind", "") != "hello") return;
    if (hello.value("job", "") != launch_.job) {
      channel.send(Json{{"kind", "other run"}}.dump(), Clock::now() + retry_interval);
      return;
    }
    const int rank = hello.at("rank");
    Peer peer = peer_from(hello.at("peer"));
    const std::string who = fmt::format("rank {} ({})", rank, peer.host);
    if (hello.at("size") != launch_.size || rank < 0 || rank >= launch_.size) {
      add_fault(channel, fmt::format("{} was started as one of {} ranks, rank 0 ({}) as one of {}", who,
                                     hello.at("size").get<int>(), launch_.host, launch_.size));
      return;
    }
    const auto index = static_cast<size_t>(rank);
    if (came_[index]) {
      const std::string other = rank == 0 ? launch_.host : meeting_.peers[index].host;
      add_fault(channel, fmt::format("rank {} was started twice, on {} and on {}", rank, other, peer.host));
      return;
    }
    for (const Fact& fact : facts_) {
      const std::string theirs = hello.at("facts").value(fact.name, "");
      if (theirs == fact.value) continue;
      faults_.push_back(fmt::format("{}: {} {}; rank 0 ({}): {}", who, fact.name,
                                    first_lines(lines_missing_in(fact.value, theirs)), launch_.host,
                                    first_lines(lines_missing_in(theirs, fact.value))));
    }
    if (address != "127.0.0.1" && address != "::1") {
      std::erase(peer.addresses, address);
      peer.addresses.insert(peer.addresses.begin(), address);
    }
    meeting_.peers[index] = std::move(peer);
    meeting_.channels[index] = std::move(channel);
    came_[index] = true;
  }

  // A rank that came may have ended again.
  void check_channels() {
    for (size_t rank = 1; rank < came_.size(); ++rank) {
      if (!came_[rank]) continue;
      meeting_.channels[rank].read_available();
      if (!meeting_.channels[rank].open() && !faulty())
        faults_.push_back(fmt::format("rank {} ({}) ended before all ranks had come", rank, meeting_.peers[rank].host));
    }
  }

  void tell_all(const Json& message, Clock::time_point deadline) {
    for (FrameChannel& channel : meeting_.channels)
      if (channel.open()) channel.send(message.dump(), deadline);
    for (FrameChannel& channel : rejected_) channel.send(message.dump(), deadline);
  }

  [[noreturn]] void refuse(const Timeout& timeout, int port) {
    tell_all({{"kind", "refused"}}, Clock::now() + 1s);
    if (faulty())
      throw Error(ExitCode::device,
                  "the ranks of this run do not fit together:\n  {}\nstart all with the same "
                  "program, command, config and data",
                  listed(faults_, "\n  "));
    std::vector<std::string> missing;
    for (size_t rank = 0; rank < came_.size(); ++rank)
      if (!came_[rank]) missing.push_back(std::to_string(rank));
    throw Error(ExitCode::device,
                "of {} ranks, {} did not come within {}: start all ranks, and see whether rank 0 ({}, port {}) can be "
                "reached from their hosts",
                launch_.size, listed(missing, ", "), describe(timeout), launch_.host, port);
  }

 private:
  void add_fault(FrameChannel& channel, std::string fault) {
    faults_.push_back(std::move(fault));
    rejected_.push_back(std::move(channel));
  }

  const Launch& launch_;
  Meeting& meeting_;
  const std::vector<Fact>& facts_;
  std::vector<bool> came_;
  std::vector<FrameChannel> rejected_;
  std::vector<std::string> faults_;
};

void assemble(const Launch& launch, Socket master, const std::vector<Fact>& facts, const Timeout& timeout,
              const Peer& self, Meeting& meeting) {
  auto deadline = Clock::now() + seconds_duration(timeout.seconds);
  struct Caller {
    FrameChannel channel;
    std::string address;
  };
  std::vector<Caller> callers;
  Assembly assembly(launch, meeting, facts);
  meeting.peers[0] = self;
  while (!assembly.complete()) {
    // Ranks that come a little later are told too.
    if (assembly.faulty()) deadline = std::min(deadline, Clock::now() + latecomers_grace);
    if (Clock::now() >= deadline) assembly.refuse(timeout, port_of(master));
    if (auto accepted = accept_from(master, Clock::now() + retry_interval / 10))
      callers.push_back({FrameChannel(std::move(accepted->socket)), accepted->address});
    for (Caller& caller : callers) {
      caller.channel.read_available();
      if (const auto hello = caller.channel.next_frame())
        assembly.arrive(std::move(caller.channel), caller.address, *hello);
    }
    std::erase_if(callers, [](const Caller& caller) { return !caller.channel.open(); });
    assembly.check_channels();
  }
  if (assembly.faulty()) assembly.refuse(timeout, port_of(master));
  std::random_device random;
  meeting.token = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  Json welcome{{"kind", "welcome"}, {"token", meeting.token}, {"peers", Json::array()}};
  for (const Peer& peer : meeting.peers) welcome["peers"].push_back(to_json(peer));
  assembly.tell_all(welcome, Clock::now() + seconds_duration(timeout.seconds));
}

void report_to_master(const Launch& launch, const std::vector<std::string>& addresses, const std::vector<Fact>& facts,
                      const Timeout& timeout, const Peer& self, Meeting& meeting) {
  const auto deadline = Clock::now() + seconds_duration(timeout.seconds);
  Json hello{{"kind", "hello"},     {"job", launch.job},     {"rank", launch.rank},
             {"size", launch.size}, {"peer", to_json(self)}, {"facts", Json::object()}};
  for (const Fact& fact : facts) hello["facts"][fact.name] = fact.value;
  std::string found = "nobody listens there";
  do {
    for (const std::string& address : addresses) {
      auto socket = connect_to(address, launch.master_port, std::min(deadline, Clock::now() + 2s));
      if (!socket) continue;
      FrameChannel channel(std::move(*socket));
      channel.send(hello.dump(), deadline);
      const auto text = channel.receive(deadline + answer_grace);
      const Json answer = text ? Json::parse(*text, nullptr, false) : Json();
      const std::string kind = answer.is_object() ? answer.value("kind", "") : "";
      if (kind == "refused") throw Error(ExitCode::device, std::string());
      if (kind == "welcome") {
        meeting.token = answer.at("token");
        for (const Json& peer : answer.at("peers")) meeting.peers.push_back(peer_from(peer));
        meeting.channels.push_back(std::move(channel));
        return;
      }
      found = kind == "other run" ? "another run listens there" : "what listens there is not rank 0 of this run";
    }
    std::this_thread::sleep_for(retry_interval);
  } while (Clock::now() < deadline);
  std::vector<std::string> unresolved;
  for (const std::string& address : addresses) {
    const std::string why = why_unresolved(address);
    if (!why.empty()) unresolved.push_back(fmt::format("{} does not resolve ({})", address, why));
  }
  if (unresolved.size() == addresses.size()) {
    found = listed(unresolved, "; ");
  } else if (!unresolved.empty()) {
    found += "; " + listed(unresolved, "; ");
  }
  throw Error(ExitCode::device, "rank {} ({}) did not find rank 0 at {} port {} within {}: {}", launch.rank,
              launch.host, listed(addresses, " or "), launch.master_port, describe(timeout), found);
}

uint32_t checksum_of_executable() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> piece(1 << 20);
  uint32_t crc = 0;
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())).gcount() > 0)
    crc = crc32c(piece.data(), static_cast<size_t>(file.gcount()), crc);
  return crc;
}

}  // namespace

std::string describe(const Timeout& timeout) {
  const std::string source = timeout.set_by.empty() ? "" : fmt::format(" ({})", timeout.set_by);
  return fmt::format("{:g} s{}", timeout.seconds, source);
}

std::vector<Fact> build_facts() {
  static const uint32_t checksum = checksum_of_executable();
  const auto build = fmt::format("{} ({:08x})", version, checksum);
  return {{"build", build}, {"instruction set", dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa())}};
}

Socket listen_as_master(const Launch& launch) { return listen_on(launch.master_port); }

Meeting meet(const Launch& launch, Socket master, const std::vector<std::string>& addresses,
             const std::vector<Fact>& facts, const Timeout& timeout) {
  Meeting meeting;
  meeting.heartbeat_listener = listen_on(0);
  meeting.group_listener = listen_on(0);
  const Peer self = describe_self(launch, meeting);
  try {
    if (launch.rank == 0) {
      assemble(launch, std::move(master), facts, timeout, self, meeting);
    } else {
      report_to_master(launch, addresses, facts, timeout, self, meeting);
    }
  } catch (const Json::exception& error) {
    throw Error(ExitCode::device, "rank {} ({}) got a message that it does not understand: {}", launch.rank,
                launch.host, error.what());
  }
  return meeting;
}

std::optional<FrameChannel> call_peer(const Peer& peer, const Peer& self, PeerPort port, const std::string& greeting,
                                      Clock::time_point deadline) {
  std::vector<std::string> addresses = peer.addresses;
  if (peer.machine == self.machine) addresses.insert(addresses.begin(), "127.0.0.1");
  for (const std::string& address : addresses) {
    auto socket = connect_to(address, port == PeerPort::group ? peer.group_port : peer.heartbeat_port, deadline);
    if (!socket) continue;
    FrameChannel channel(std::move(*socket));
    if (channel.send(greeting, deadline)) return channel;
  }
  return std::nullopt;
}

}  // namespace gptrain
