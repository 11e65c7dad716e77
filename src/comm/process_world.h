// Worlds whose ranks are processes.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/lines.h"
#include "comm/bootstrap.h"
#include "comm/rendezvous.h"
#include "comm/world.h"

namespace gptrain::inline comm {

// Exit of a process whose config was refused, if it waits in MPI to tell the others and they do not come in time.
struct Refusal {
  ExitCode code = ExitCode::device;
  Lines message;  // printed before the report of the wait; empty: nothing more to print
};

struct WorldOptions {
  std::vector<Fact> facts;  // properties that must be equal on every rank, besides build and instruction set
  bool same_instruction_set = true;
  Timeout timeout;                 // limit for peers to arrive, and for a silent one to count as lost
  std::string interface = "auto";  // network interface or address to listen at; see ListenOptions in rendezvous.h
  Refusal refusal = {};            // code and message if a wait in MPI times out
  int ranks = 0;                   // number of ranks: the first of the launched processes; 0: all
  // Takes the lost ranks, rising, on every remaining rank (Heartbeat::Policy), over TCP only: under MPI the launcher
  // ends all. Called by the heartbeat's thread. Groups with a lost rank then throw PeerGone, and the remaining ranks
  // can make groups of themselves. Null: a loss ends this process.
  std::function<void(const std::vector<int>& lost)> on_loss = {};
};

// Finds the peers, compares the facts and starts the heartbeat; a world of one process has none. Collective. While the
// world lives, the loss of a peer ends this process with exit code 5, unless options.on_loss takes it. Destroying it is
// collective (a barrier), unless an exception is in flight: the other processes then end as well. THROWS Error(device)
// as join_rendezvous() does (rendezvous.h), with an empty message where rank 0 reports the fault.
//
// Processes beyond options.ranks are met and compared like all others but are not ranks of the world: their rank() is
// at least size(). These processes have the groups that list them and take no part in the barrier at the end; over
// TCP the loss of one is only reported (under MPI the launcher ends all).
//
// make_process_world chooses MPI if uses_mpi(launch), else TCP.
std::unique_ptr<World> make_process_world(const Launch& launch, const WorldOptions& options);
std::unique_ptr<World> make_tcp_world(const Launch& launch, const WorldOptions& options);
// Throws Error(machine) if this build has no MPI, Error(usage) if the launcher does not start it.
std::unique_ptr<World> make_mpi_world(const Launch& launch, const WorldOptions& options);

// built_with_mpi: this build has MPI. uses_mpi: the run uses it; under mpirun always, under srun --mpi=pmix if this
// build has it.
bool built_with_mpi();
bool uses_mpi(const Launch& launch);

}  // namespace gptrain::comm
