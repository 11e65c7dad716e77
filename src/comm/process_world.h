// Worlds whose ranks are processes.
#pragma once

#include <memory>
#include <vector>

#include "comm/bootstrap.h"
#include "comm/rendezvous.h"
#include "comm/world.h"

namespace gptrain {

// How a process ends that meets the others only to agree on a refusal, where they do not come.
struct Refusal {
  ExitCode code = ExitCode::device;
  std::string message;  // what it says before; empty: it has been said
};

struct WorldOptions {
  std::vector<Fact> facts;  // what must be the same on every rank, besides build and instruction set
  bool same_instruction_set = true;
  Timeout timeout;                 // for peers to come, and for a silent one to count as lost
  std::string interface = "auto";  // where to listen; see Doors in rendezvous.h
  Refusal refusal = {};            // for a wait in MPI that nothing but the process's end can end
  int ranks = 0;                   // of the processes that the launcher started, the first so many are needed; 0: all
};

// Finds the peers, compares the facts, starts the heartbeat. A world of one process has no heartbeat. While the world
// lives, a peer that is lost ends this process with exit code 5. Destroying it is collective (a barrier) unless an
// exception is on its way: then the others end as well. Error(device): see rendezvous.h; an empty message if rank 0
// reports it.
//
// Processes beyond options.ranks are met and compared as all others, and then are no ranks of the world: the rank() of
// theirs is at least its size(). They have the groups that they are listed in, take no part in the barrier at the end,
// and over TCP one that is lost is reported and ends nothing (under MPI the launcher ends all).
//
// Chooses MPI if uses_mpi(launch), else TCP.
std::unique_ptr<World> make_process_world(const Launch& launch, const WorldOptions& options);
std::unique_ptr<World> make_tcp_world(const Launch& launch, const WorldOptions& options);
// Error(device): this build has no MPI, or the launcher does not start it.
std::unique_ptr<World> make_mpi_world(const Launch& launch, const WorldOptions& options);

// Whether this build has MPI and the launcher starts it. mpirun has no other way; srun --mpi=pmix has.
bool built_with_mpi();
bool uses_mpi(const Launch& launch);

}  // namespace gptrain
