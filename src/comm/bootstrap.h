// Finds this process's rank and the number of ranks in the launcher's environment variables.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gptrain::inline comm {

struct Launch {
  enum class Source { alone, variables, slurm, open_mpi, other_mpi };
  Source source = Source::alone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;                         // rank among the processes of this node
  int local_size = 1;                         // processes on this node; 0: unknown
  bool mpi = false;                           // true: the launcher can start MPI
  std::string host;                           // this node's name
  std::vector<std::string> master_addresses;  // candidate addresses of rank 0, likeliest first; empty: MPI tells
  int master_port = 0;
  // Tasks and nodes of the job if this process was started without a launcher of tasks.
  int tasks_of_job = 1;
  int nodes_of_job = 1;
  std::string tasks_variable;  // the variable that tells tasks_of_job
  std::string nodes_variable;  // the variable that tells nodes_of_job
  std::string job;             // identifies this run among others that listen at the same address
};

// Returns the value of an environment variable; null if it is not set.
using Environment = std::function<const char*(const char*)>;

// Finds rank and size. Order of precedence:
//   mpirun of Open MPI: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (all four, or RANK=0 WORLD_SIZE=1) and LOCAL_RANK, LOCAL_WORLD_SIZE
//   a step of Slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, ...; PMIX_RANK indicates srun --mpi=pmix.
//     Rank 0 is on the first node of the step. The network may not know that node's name; the address of srun, which
//     often runs there, is tried as well. The port is derived from the numbers of job and step. MASTER_ADDR and
//     MASTER_PORT override both. A batch script is not a step.
//   other launchers: JSM_NAMESPACE_RANK, FLUX_TASK_RANK, MV2_COMM_WORLD_RANK, PALS_RANKID, PMI_RANK, MPI_RANKID,
//     HOROVOD_RANK and their companions. PMIX_RANK and ALPS_APP_PE alone are refused. On several nodes MASTER_ADDR and
//     MASTER_PORT must be set: THROWS Error(usage) otherwise. These launchers start one task of a Slurm step on each
//     node, so that their variables count if Slurm's differ.
// TORCHELASTIC_USE_AGENT_STORE says that torchrun's agent listens at MASTER_PORT: rank 0 then listens at a port derived
// from it. An address may stand in brackets.
// Without any of them the process is alone. THROWS Error(usage) if a variable is missing, not a number, out of range,
// or contradicts another.
Launch find_launch(const Environment& environment);
Launch find_launch();  // reads this process's environment

// "rank 3 of 8 (mpirun)"
std::string describe(const Launch& launch);

// Returns the first host of a Slurm list: "node07" of "node[07-09,12],login". Empty for an empty list.
std::string first_host(const std::string& list);

// Sets up this process on its node. REQUIRES: called before threads start.
//   - The process is killed when its launcher dies. A write that the launcher no longer reads does not kill it.
//   - The processes of a node divide its cores among themselves, unless the user bound them to cores. A binding by
//     mpirun to a single core is ignored if there are more cores than processes. With more processes than cores, all
//     may use all cores.
// Returns false if processes of this node share cores: waiting should then yield the core.
bool set_up_on_node(const Launch& launch);

}  // namespace gptrain::comm
