// How the processes of a run find each other: all report to rank 0 over TCP, which compares what they are and tells
// everyone where everyone is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
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
  std::vector<Peer> peers;    // of every rank
  std::string token;          // which only this run knows; connections begin with it
  Socket heartbeat_listener;  // of this rank
  Socket group_listener;
  std::vector<FrameChannel> channels;  // on rank 0 one to each rank (its own closed), else one to rank 0
};

// How long ranks wait for each other, and what sets that: messages name it.
struct Timeout {
  double seconds = 60;
  std::string set_by = "comm.timeout_seconds";  // empty: nothing that a user sets
};
std::string describe(const Timeout& timeout);  // "60 s (comm.timeout_seconds)"

// What every build knows of itself: version, a checksum of the executable, and the instruction set in use.
std::vector<Fact> build_facts();

// Rank 0's listener: at launch.master_port, or with port 0 anywhere.
Socket listen_as_master(const Launch& launch);

// Collective over the run. `master`: rank 0's listener from listen_as_master, null elsewhere. `addresses`: where to
// look for rank 0, at launch.master_port. Returns when all ranks have come and agree on every fact, or throws
// Error(device) on all within the timeout and a little more: ranks that did not come, came twice, or differ are
// named, with their hosts, by rank 0; the message on other ranks is then empty.
Meeting meet(const Launch& launch, Socket master, const std::vector<std::string>& addresses,
             const std::vector<Fact>& facts, const Timeout& timeout);

enum class PeerPort { heartbeat, group };

// A connection to that port of `peer`, which begins with `greeting`; tries all addresses. Nothing if none answers in
// time.
std::optional<FrameChannel> call_peer(const Peer& peer, const Peer& self, PeerPort port, const std::string& greeting,
                                      Clock::time_point deadline);

}  // namespace gptrain
