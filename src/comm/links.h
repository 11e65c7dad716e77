// A kind of transport between the processes of a run: what makes the links of a group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/rendezvous.h"
#include "comm/transport.h"

namespace gptrain {

class Links {
 public:
  virtual ~Links() = default;

  // The links of the group of `ranks`, at least two, of which this rank is number `place`. Every member calls this;
  // `index` counts the groups of the world. Error(device) if a member does not come within the timeout.
  virtual std::unique_ptr<Transport> connect(const std::vector<int>& ranks, int place, int index) = 0;
  // All groups are done with. `finished`: this holds on every rank; false: this rank has failed.
  virtual void close(bool finished) = 0;
  // Ends this process with exit code 5; on one of them, the reporter, also all others that the launcher can reach.
  [[noreturn]] virtual void end_process(bool reporter) = 0;
};

// Called after the loss of a peer, which the heartbeat notices as well: gives it time to report the loss and to end the
// process.
void await_heartbeat();

// Sockets between all pairs of a group's ranks. Takes the group listener from the meeting.
std::unique_ptr<Links> make_tcp_links(Meeting& meeting, int rank, double timeout_seconds);

// MPI, in a build and a process that have it.
class MpiLinks : public Links {
 public:
  // Rank 0's text, on every rank; collective.
  virtual std::string share(const std::string& text) = 0;
};

// Starts MPI. `yielding`: waiting gives the core to other processes at once. Error(device): this build has no MPI, or
// MPI counts other ranks than the launcher.
std::unique_ptr<MpiLinks> start_mpi(const Launch& launch, bool yielding);

}  // namespace gptrain
