// Lets the processes of a run find each other: all report to rank 0 over TCP, which compares their facts and sends
// everyone the addresses of all.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/handshake.h"
#include "comm/socket.h"

namespace gptrain::inline comm {

// A property that must be equal on every rank. If values have several lines, the lines that differ are reported.
struct Fact {
  std::string name;
  std::string value;
};

struct Peer {
  std::string host;
  std::string machine;                 // equal for processes of one machine
  std::vector<std::string> addresses;  // likeliest to work first
  int heartbeat_port = 0;
  int group_port = 0;
};

struct Rendezvous {
  std::vector<Peer> peers;            // by rank
  Secret key;                         // known only to the ranks of this run; later connections prove it
  SecureListener heartbeat_listener;  // this rank's listener
  SecureListener group_listener;
  std::vector<FrameChannel> channels;  // rank 0: one per rank (its own closed); others: one to rank 0
};

// Time for which ranks wait for each other, and the setting that messages name as its source.
struct Timeout {
  double seconds = 60;
  std::string set_by = "comm.timeout_seconds";  // empty: not set by the user
  std::function<bool()> stop_wanted = {};       // ends the wait for peers to come: Error(requeue)
};
std::string describe(const Timeout& timeout);  // "60 s (comm.timeout_seconds)"

// Returns the properties of the build: version, checksum of the executable, and instruction set in use.
std::vector<Fact> build_facts();

// The listening interface of a run's ranks, and the secret that they prove to each other.
struct ListenOptions {
  Secret secret;
  // A network interface or one of its addresses; "auto": the address from which launch.master_addresses are reached.
  std::string interface = "auto";
};

// Returns the numeric address to listen at. Empty: all interfaces, because MPI tells the addresses, because none of
// launch.master_addresses resolves, or because rank 0's own host name resolves to the loopback, which other hosts
// cannot reach. THROWS Error(usage) if the interface does not exist.
std::string listening_address(const Launch& launch, const ListenOptions& listen_options);

// Returns rank 0's listener, at launch.master_port; port 0: any free port. Called by rank 0 alone, before
// join_rendezvous. THROWS Error(device) if the port is taken, or as listening_address does.
Socket listen_as_master(const Launch& launch, const ListenOptions& listen_options = {});

// Meets all ranks of the run. Collective; blocks. `master`: rank 0's listener from listen_as_master, elsewhere a socket
// that is not open. `addresses`: candidate addresses of rank 0, at launch.master_port; rank 0 does not use them.
// Returns when all ranks have arrived and agree on every fact. Otherwise THROWS Error(device) on all ranks, about 2 s
// after a fault, or shortly after the timeout: on rank 0 it names the ranks (and hosts) that did not arrive, arrived
// twice, ended or differ. On other ranks the message is empty, as rank 0 reports the fault; a rank that did not find
// rank 0 says why. THROWS Error(requeue) if timeout.stop_wanted() returns true, and as listening_address does.
Rendezvous join_rendezvous(const Launch& launch, Socket master, const std::vector<std::string>& addresses,
                           const std::vector<Fact>& facts, const Timeout& timeout,
                           const ListenOptions& listen_options = {});

enum class PeerPort { heartbeat, group };

// Result of call_peer: a connection to another rank. `channel` may be used only if `end` is CallEnd::proven. Any other
// `end` says why the call failed; if several addresses were reached, it is the reason of the last one.
struct PeerCall {
  CallEnd end = CallEnd::unreachable;
  FrameChannel channel{Socket()};
};
struct CallDeadlines {
  Clock::time_point connected;  // deadline of connecting, for all addresses together
  Clock::time_point proven;     // deadline of the proof and the greeting
};
// Connects to rank `rank`, which listens at `port` of `peer`. Tries the peer's addresses in order, and the loopback
// first if `self`, this rank's own entry, is on the same machine. On success both sides have proved `key`, and
// `greeting`, the first frame, was sent. Does not throw if the peer cannot be reached.
PeerCall call_peer(const Peer& peer, int rank, const Peer& self, PeerPort port, const Secret& key,
                   const std::string& greeting, const CallDeadlines& by);

}  // namespace gptrain::comm
