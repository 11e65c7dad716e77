// A kind of transport between the processes of a run; it creates the links of a group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/rendezvous.h"
#include "comm/transport.h"

namespace gptrain::inline comm {

class Links {
 public:
  virtual ~Links() = default;

  // Connects the group of `ranks`, at least two, in which this rank is number `rank_in_group`. Called by every member.
  // `index`: number of groups that the world has made before. THROWS Error(device) if a member does not connect within
  // the timeout.
  virtual std::unique_ptr<Transport> connect(const std::vector<int>& ranks, int rank_in_group, int index) = 0;
  // Makes groups with lost ranks throw PeerGone, though the ranks may only be silent. Thread-safe.
  virtual void drop(const std::vector<int>& lost) = 0;
  // Closes after all groups are done. `finished`: the run has ended well on every rank; false: this rank has failed.
  virtual void close(bool finished) = 0;
  // Ends this process with exit code 5; the reporter also ends all others that the launcher can reach.
  [[noreturn]] virtual void end_process(bool reporter) = 0;
};

// Waits 3 s after the loss of a peer, so that the heartbeat, which notices it as well, can report it and end the
// process.
void await_heartbeat();

// Uses a connection between each pair of ranks, which all their groups share. Takes the group listener from the
// meeting. `outlives_peers`: a group throws PeerGone at once if a rank of it is lost; false: it leaves the end of the
// process to the heartbeat.
std::unique_ptr<Links> make_tcp_links(Rendezvous& rendezvous, int rank, double timeout_seconds,
                                      bool outlives_peers = false);

// Uses MPI, if the build and the launcher have it.
class MpiLinks : public Links {
 public:
  // Returns rank 0's text on every rank. Collective.
  virtual std::string share(const std::string& text) = 0;
};

// Starts MPI. `yielding`: waiting yields the core at once. THROWS Error(machine) if this build has no MPI,
// Error(usage) if MPI's rank or number of ranks is not the launcher's.
std::unique_ptr<MpiLinks> start_mpi(const Launch& launch, bool yielding);

}  // namespace gptrain::comm
