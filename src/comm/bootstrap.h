// Which rank of how many this process is, as its launcher says through the environment.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gptrain {

struct Launch {
  enum class Source { alone, variables, slurm, open_mpi, other_mpi };
  Source source = Source::alone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;                         // among the processes of this node
  int local_size = 1;                         // 0: the launcher does not say
  bool mpi = false;                           // whether the launcher can start MPI
  std::string host;                           // this node's name
  std::vector<std::string> master_addresses;  // where rank 0 may be, the likeliest first; empty: MPI tells
  int master_port = 0;
  int tasks_of_job = 1;  // tasks that the job has, where this process was started without a launcher of tasks
  std::string job;  // tells this run from others that may listen at the same place
};

// Value of a variable of the environment; null if it is not set.
using Environment = std::function<const char*(const char*)>;

// Reads, in this order of precedence,
//   mpirun of Open MPI: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (all four, or RANK=0 WORLD_SIZE=1) and LOCAL_RANK, LOCAL_WORLD_SIZE
//   a step of Slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, ...; PMIX_RANK tells of srun --mpi=pmix.
//     Rank 0 is on the first node of the step. The network may not know that node's name; often srun itself runs there,
//     so its address is tried, too. The port follows from the numbers of job and step. MASTER_ADDR and MASTER_PORT
//     override both. A batch script is not a step.
//   launchers of other MPIs: JSM_NAMESPACE_RANK, FLUX_TASK_RANK, MV2_COMM_WORLD_RANK, PALS_RANKID, PMI_RANK and what
//     goes with them. On several nodes MASTER_ADDR and MASTER_PORT must be set: Error(usage).
// With TORCHELASTIC_USE_AGENT_STORE, by which torchrun says that its agent listens at MASTER_PORT, rank 0 listens at a
// port that follows from it. An address may stand in brackets.
// Without any of them the process is alone. Error(device): a variable is missing, is no number, is out of range, or
// contradicts another one.
Launch find_launch(const Environment& environment);
Launch find_launch();  // of this process

// "rank 3 of 8 (mpirun)"
std::string describe(const Launch& launch);

// The first host of a Slurm list: "node07" of "node[07-09,12],login". Empty for an empty list.
std::string first_host(const std::string& list);

// Does what launchers leave to the program. Call before threads start:
//   - The process is killed when its launcher dies. Output that the launcher no longer takes does not kill it.
//   - The processes of a node divide its cores among themselves, unless somebody has bound them to cores. A binding of
//     mpirun to a single core does not count if there are more cores than processes. With more processes than cores,
//     all may use all cores.
// Returns false if processes of this node share cores: one that waits should then yield.
bool settle_on_node(const Launch& launch);

}  // namespace gptrain
