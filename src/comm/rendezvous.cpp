#include "comm/rendezvous.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output.h"
#include "base/units.h"
#include "base/version.h"
#include "comm/frames.h"

namespace gptrain::inline comm {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

constexpr auto retry_interval = 100ms;
constexpr auto answer_grace = 5s;      // time after the deadline for rank 0's verdict to arrive
constexpr auto latecomers_grace = 2s;  // time for further ranks to report once the run cannot start
constexpr auto proof_patience = 10s;   // time for rank 0 to prove the secret; it may be busy
constexpr size_t max_listed = 8;       // ranks listed in one message

// Purpose of the proof to rank 0, which makes it useless at any other listener.
constexpr const char* rendezvous_purpose = "to meet rank 0";

std::string purpose_of(PeerPort port, int rank) {
  return fmt::format("{} of rank {}", port == PeerPort::group ? "groups" : "heartbeat", rank);
}

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

Peer describe_self(const Launch& launch, const Rendezvous& rendezvous, const std::string& address) {
  // The boot id alone is not enough: containers of one machine share it but not the network.
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const std::vector<std::string> addresses =
      address.empty() ? interface_addresses() : std::vector<std::string>{address};
  return {launch.host, launch.host + "/" + boot, addresses, port_of(rendezvous.heartbeat_listener.listener()),
          port_of(rendezvous.group_listener.listener())};
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

// Returns the lines of `text` that are not in `other`.
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

// Returns at most three lines, and the number of the others.
std::string first_lines(std::vector<std::string> lines) {
  constexpr size_t most = 3;
  if (lines.empty()) return "without that";
  const size_t more = lines.size() - std::min(lines.size(), most);
  lines.resize(lines.size() - more);
  return listed(lines, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

// Names the awaited ranks once when a wait takes long, and ends the wait when the process is to stop.
class PatientWait {
 public:
  PatientWait(const Launch& launch, const Timeout& timeout) : launch_(launch), timeout_(timeout) {}

  // `awaited` tells for whom: "rank 0 at node7 port 20001".
  template <typename Awaited>
  void look(const Awaited& awaited) {
    if (timeout_.stop_wanted && timeout_.stop_wanted()) {
      throw Error(ExitCode::requeue, "rank {} ({}) was stopped by a signal while it waited for {}: nothing was begun",
                  launch_.rank, launch_.host, awaited());
    }
    if (told_ || Clock::now() < began_ + patience) return;
    told_ = true;
    print_err("rank {} ({}) waits for {}\n", launch_.rank, launch_.host, awaited());
  }

 private:
  static constexpr auto patience = 5s;

  const Launch& launch_;
  const Timeout& timeout_;
  const Clock::time_point began_ = Clock::now();
  bool told_ = false;
};

// The meeting on rank 0, with one entry per rank that has arrived.
class Assembly {
 public:
  Assembly(const Launch& launch, Rendezvous& rendezvous, const std::vector<Fact>& facts)
      : launch_(launch), rendezvous_(rendezvous), facts_(facts), came_(launch.size) {
    rendezvous_.peers.resize(came_.size());
    for (size_t rank = 0; rank < came_.size(); ++rank) rendezvous_.channels.emplace_back(Socket());
    came_[0] = true;
  }

  bool complete() const { return std::find(came_.begin(), came_.end(), false) == came_.end(); }
  bool faulty() const { return !faults_.empty(); }
  // "ranks 1, 3"
  std::string missing() const {
    std::vector<std::string> missing;
    for (size_t rank = 0; rank < came_.size(); ++rank)
      if (!came_[rank]) missing.push_back(std::to_string(rank));
    return (missing.size() == 1 ? "rank " : "ranks ") + listed(missing, ", ");
  }

  // Handles a caller that has proved the secret; without a secret that is anybody. Ignores text that is not a hello.
  void arrive(FrameChannel channel, const std::string& address, const std::string& text) {
    try {
      arrive(std::move(channel), address, parse_json_or_discard(text));
    } catch (const Json::exception&) {
      ++num_unintelligible_;
    }
  }

  // Notices ranks that arrived and ended again.
  void check_channels() {
    for (size_t rank = 1; rank < came_.size(); ++rank) {
      if (!came_[rank]) continue;
      rendezvous_.channels[rank].read_available();
      if (!rendezvous_.channels[rank].open() && !faulty())
        faults_.push_back(
            fmt::format("rank {} ({}) ended before all ranks had come", rank, rendezvous_.peers[rank].host));
    }
  }

  void tell_all(const Json& message, Clock::time_point deadline) {
    for (FrameChannel& channel : rendezvous_.channels)
      if (channel.open()) channel.send(json_text(message), deadline);
    for (FrameChannel& channel : rejected_) channel.send(json_text(message), deadline);
  }

  [[noreturn]] void refuse(const Timeout& timeout, const SecureListener& secure_listener) {
    tell_all({{"kind", "refused"}}, Clock::now() + 1s);
    if (faulty())
      throw Error(ExitCode::device,
                  "the ranks of this run do not fit together:\n  {}\nstart all with the same "
                  "program, command, config and data",
                  Lines::join(faults_, "\n  "));
    const int64_t num_strangers = secure_listener.num_turned_away() + num_unintelligible_;
    throw Error(ExitCode::device,
                "of {} ranks, {} did not come within {}: start all ranks, and see whether rank 0 ({}, port {}) can be "
                "reached from their hosts{}",
                launch_.size, missing(), describe(timeout), launch_.host, port_of(secure_listener.listener()),
                num_strangers == 0 ? std::string()
                                   : fmt::format("; {} did not know the secret, which must be the same for all ranks "
                                                 "(GPTRAIN_SECRET)",
                                                 format_counted(num_strangers, "caller")));
  }

 private:
  void arrive(FrameChannel channel, const std::string& address, const Json& hello) {
    if (text_member(hello, "kind") != "hello") {
      ++num_unintelligible_;
      return;
    }
    if (text_member(hello, "job") != launch_.job) {
      channel.send(json_text(Json{{"kind", "other run"}}), Clock::now() + retry_interval);
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
      const std::string other = rank == 0 ? launch_.host : rendezvous_.peers[index].host;
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
    rendezvous_.peers[index] = std::move(peer);
    rendezvous_.channels[index] = std::move(channel);
    came_[index] = true;
  }

  void add_fault(FrameChannel& channel, std::string fault) {
    faults_.push_back(std::move(fault));
    rejected_.push_back(std::move(channel));
  }

  const Launch& launch_;
  Rendezvous& rendezvous_;
  const std::vector<Fact>& facts_;
  std::vector<bool> came_;
  std::vector<FrameChannel> rejected_;
  std::vector<std::string> faults_;
  int64_t num_unintelligible_ = 0;
};

// Returns the key of a run, derived from the secret and the token that rank 0 has drawn.
Secret run_key(const Secret& secret, const std::string& token) { return Secret(secret.proof("run " + token)); }

void assemble(const Launch& launch, SecureListener secure_listener, const std::vector<Fact>& facts,
              const Timeout& timeout, const Secret& secret, const Peer& self, Rendezvous& rendezvous) {
  auto deadline = Clock::now() + seconds_duration(timeout.seconds);
  Assembly assembly(launch, rendezvous, facts);
  rendezvous.peers[0] = self;
  PatientWait wait(launch, timeout);
  while (!assembly.complete()) {
    wait.look([&] { return assembly.missing(); });
    // Waits a little for later ranks, so that they are told too.
    if (assembly.faulty()) deadline = std::min(deadline, Clock::now() + latecomers_grace);
    if (Clock::now() >= deadline) assembly.refuse(timeout, secure_listener);
    if (auto admitted = secure_listener.admit(Clock::now() + retry_interval / 10))
      assembly.arrive(std::move(admitted->channel), admitted->address, admitted->text);
    assembly.check_channels();
  }
  if (assembly.faulty()) assembly.refuse(timeout, secure_listener);
  const std::string token = draw_secret();
  rendezvous.key = run_key(secret, token);
  Json welcome{{"kind", "welcome"}, {"token", token}, {"peers", Json::array()}};
  for (const Peer& peer : rendezvous.peers) welcome["peers"].push_back(to_json(peer));
  assembly.tell_all(welcome, Clock::now() + seconds_duration(timeout.seconds));
}

void report_to_master(const Launch& launch, const std::vector<std::string>& addresses, const std::vector<Fact>& facts,
                      const Timeout& timeout, const Secret& secret, const Peer& self, Rendezvous& rendezvous) {
  const auto deadline = Clock::now() + seconds_duration(timeout.seconds);
  Json hello{{"kind", "hello"},     {"job", launch.job},     {"rank", launch.rank},
             {"size", launch.size}, {"peer", to_json(self)}, {"facts", Json::object()}};
  for (const Fact& fact : facts) hello["facts"][fact.name] = fact.value;
  std::string found = "nobody listens there";
  PatientWait wait(launch, timeout);
  do {
    wait.look(
        [&] { return fmt::format("rank 0 at {} port {}: {}", listed(addresses, " or "), launch.master_port, found); });
    for (const std::string& address : addresses) {
      auto socket = connect_to(address, launch.master_port, std::min(deadline, Clock::now() + 2s));
      if (!socket) continue;
      FrameChannel channel(std::move(*socket));
      const CallEnd end =
          prove_to(channel, secret, rendezvous_purpose, std::min(deadline, Clock::now() + proof_patience));
      if (end != CallEnd::proven) {
        found =
            "the program that listens there does not know the secret of this run: it is another program, such as a "
            "launcher's "
            "agent, or "
            "GPTRAIN_SECRET is not the same for all ranks";
        continue;
      }
      channel.take_frames_up_to(max_table_bytes);
      channel.send(json_text(hello), deadline);
      const auto text = channel.receive(deadline + answer_grace);
      const Json answer = text ? parse_json_or_discard(*text) : Json();
      const std::string kind = text_member(answer, "kind");
      if (kind == "refused") throw Error(ExitCode::device, std::string());
      if (kind == "welcome") {
        rendezvous.key = run_key(secret, answer.at("token"));
        for (const Json& peer : answer.at("peers")) rendezvous.peers.push_back(peer_from(peer));
        rendezvous.channels.push_back(std::move(channel));
        return;
      }
      found = kind == "other run" ? "another run listens there"
                                  : "the program that listens there is not rank 0 of this run";
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
  throw Error(ExitCode::device,
              "rank {} ({}) did not find rank 0 at {} port {} within {}: {}; start all ranks, each with the host of "
              "rank 0 as MASTER_ADDR",
              launch.rank, launch.host, listed(addresses, " or "), launch.master_port, describe(timeout), found);
}

uint32_t checksum_of_executable() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> piece(1 << 20);
  uint32_t crc = 0;
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())).gcount() > 0)
    crc = crc32c(piece.data(), file.gcount(), crc);
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

std::string listening_address(const Launch& launch, const ListenOptions& listen_options) {
  if (listen_options.interface != "auto") {
    const std::vector<std::string> addresses = addresses_of_interface(listen_options.interface);
    if (addresses.empty())
      throw Error(ExitCode::usage, "comm.interface = \"{}\": {} has no interface or address of that name: it has {}",
                  listen_options.interface, launch.host, listed(interface_names(), ", "));
    return addresses.front();
  }
  for (const std::string& master : launch.master_addresses) {
    const std::string address = address_towards(master);
    if (address.empty()) continue;
    const bool is_loopback = address.starts_with("127.") || address == "::1";
    return is_loopback && master != "localhost" && master != address ? "" : address;
  }
  return "";
}

Socket listen_as_master(const Launch& launch, const ListenOptions& listen_options) {
  return listen_on(launch.master_port, listening_address(launch, listen_options));
}

Rendezvous join_rendezvous(const Launch& launch, Socket master, const std::vector<std::string>& addresses,
                           const std::vector<Fact>& facts, const Timeout& timeout,
                           const ListenOptions& listen_options) {
  Rendezvous rendezvous;
  const std::string address = listening_address(launch, listen_options);
  // Other ranks call only once they know the run's key. The listeners get it below.
  Socket heartbeat = listen_on(0, address), group = listen_on(0, address);
  rendezvous.heartbeat_listener = SecureListener(std::move(heartbeat), {}, "");
  rendezvous.group_listener = SecureListener(std::move(group), {}, "");
  const Peer self = describe_self(launch, rendezvous, address);
  try {
    if (launch.rank == 0) {
      assemble(launch, SecureListener(std::move(master), listen_options.secret, rendezvous_purpose), facts, timeout,
               listen_options.secret, self, rendezvous);
    } else {
      report_to_master(launch, addresses, facts, timeout, listen_options.secret, self, rendezvous);
    }
  } catch (const Json::exception& error) {
    throw Error(ExitCode::device, "rank {} ({}) got a message that it does not understand: {}", launch.rank,
                launch.host, error.what());
  }
  rendezvous.heartbeat_listener.open(rendezvous.key, purpose_of(PeerPort::heartbeat, launch.rank));
  rendezvous.group_listener.open(rendezvous.key, purpose_of(PeerPort::group, launch.rank));
  return rendezvous;
}

PeerCall call_peer(const Peer& peer, int rank, const Peer& self, PeerPort port, const Secret& key,
                   const std::string& greeting, const CallDeadlines& by) {
  std::vector<std::string> addresses = peer.addresses;
  if (peer.machine == self.machine) addresses.insert(addresses.begin(), "127.0.0.1");
  PeerCall call;
  for (const std::string& address : addresses) {
    auto socket = connect_to(address, port == PeerPort::group ? peer.group_port : peer.heartbeat_port, by.connected);
    if (!socket) continue;
    call.channel = FrameChannel(std::move(*socket));
    call.end = prove_to(call.channel, key, purpose_of(port, rank), by.proven);
    if (call.end == CallEnd::proven && !call.channel.send(greeting, by.proven)) call.end = CallEnd::closed;
    if (call.end == CallEnd::proven) return call;
  }
  return call;
}

}  // namespace gptrain::comm
