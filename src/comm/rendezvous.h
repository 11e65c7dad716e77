// How the processes of a run find each other: all report to rank 0 over TCP, which compares what they are and tells
// everyone where everyone is.
#pragma once

#include <optional>
#include <functional>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/handshake.h"
#include "comm/socket.h"

namespace gptrain {

// Something that must be the same on every rank. Of a value of several lines, those that differ are reported.
struct Fact {
  std::string name;
  std::string value;
};

struct Peer {
  std::string host;
  std::string machine;                 // the same for processes of one machine
  std::vector<std::string> addresses;  // the most promising first
  int heartbeat_port = 0;
  int group_port = 0;
};

struct Meeting {
  std::vector<Peer> peers;  // of every rank
  Secret key;               // which only the ranks of this run know; who connects later proves it
  Gate heartbeat_gate;      // of this rank
  Gate group_gate;
  std::vector<FrameChannel> channels;  // on rank 0 one to each rank (its own closed), else one to rank 0
};

// How long ranks wait for each other, and what sets that: messages name it.
struct Timeout {
  double seconds = 60;
  std::string set_by = "comm.timeout_seconds";  // empty: nothing that a user sets
  std::function<bool()> stop_wanted = {};       // ends the wait for peers to come: Error(requeue)
};
std::string describe(const Timeout& timeout);  // "60 s (comm.timeout_seconds)"

// What every build knows of itself: version, a checksum of the executable, and the instruction set in use.
std::vector<Fact> build_facts();

// Where the ranks of a run listen, and what they prove to each other before anything else.
struct Doors {
  Secret secret;
  // A network interface or one of its addresses; "auto": the address from which launch.master_addresses are reached.
  std::string interface = "auto";
};

// The numeric address that `doors` names; empty: every interface, where MPI tells who listens where, or where the name
// of rank 0's own host means the loopback there, which other hosts cannot reach. Error(device): there is no such
// interface.
std::string listening_address(const Launch& launch, const Doors& doors);

// Rank 0's listener: at launch.master_port, or with port 0 anywhere.
Socket listen_as_master(const Launch& launch, const Doors& doors = {});

// Collective over the run. `master`: rank 0's listener from listen_as_master, null elsewhere. `addresses`: where to
// look for rank 0, at launch.master_port. Returns when all ranks have come and agree on every fact, or throws
// Error(device) on all within the timeout and a little more: ranks that did not come, came twice, or differ are
// named, with their hosts, by rank 0; the message on other ranks is then empty.
Meeting meet(const Launch& launch, Socket master, const std::vector<std::string>& addresses,
             const std::vector<Fact>& facts, const Timeout& timeout, const Doors& doors = {});

enum class PeerPort { heartbeat, group };

// A connection to that port of `peer`, which is rank `rank`, on which both sides have proved `key` and `greeting` was
// sent; tries all addresses, to reach one until `connected_by`, for a proof until `proven_by`. Else `end` says why
// there is none at the last address that could be reached.
struct PeerCall {
  CallEnd end = CallEnd::unreachable;
  FrameChannel channel{Socket()};
};
PeerCall call_peer(const Peer& peer, int rank, const Peer& self, PeerPort port, const Secret& key,
                   const std::string& greeting, Clock::time_point connected_by, Clock::time_point proven_by);

}  // namespace gptrain
