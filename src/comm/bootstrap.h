// Which rank of how many this process is, as its launcher says through the environment.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gptrain {

struct Launch {
  enum class Source { alone, variables, slurm, open_mpi };
  Source source = Source::alone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;                         // among the processes of this node
  int local_size = 1;                         // 0: the launcher does not say
  bool mpi = false;                           // whether the launcher can start MPI
  std::string host;                           // this node's name
  std::vector<std::string> master_addresses;  // where rank 0 may be, the likeliest first; empty: MPI tells
  int master_port = 0;
  std::string job;  // tells this run from others that may listen at the same place
};

// Value of a variable of the environment; null if it is not set.
using Environment = std::function<const char*(const char*)>;

// Reads, in this order of precedence,
//   mpirun of Open MPI: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (all four, or RANK=0 WORLD_SIZE=1) and LOCAL_RANK, LOCAL_WORLD_SIZE
//   a step of Slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, ...; PMIX_RANK tells of srun --mpi=pmix.
//     Rank 0 is on the first node of the step, whose name may be unknown to the network, and which is mostly the one
//     that srun runs on; its port is made of the job's and step's numbers. MASTER_ADDR and MASTER_PORT override both. A
//     batch script is no step.
// and is alone if there is none of them. Error(device): a variable that is missing, is no number or out of range, or
// contradicts another.
Launch find_launch(const Environment& environment);
Launch find_launch();  // of this process

// "rank 3 of 8 (mpirun)"
std::string describe(const Launch& launch);

// The first host of a Slurm list: "node07" of "node[07-09,12],login". Empty for an empty list.
std::string first_host(const std::string& list);

// What a launcher leaves to the program. Call before threads start:
//   - the process is killed when its launcher dies, and not by output that the launcher no longer takes
//   - processes of one node share its cores: each takes its part where nobody has bound it, or where mpirun bound it to
//     a single core though there are more. With more processes than cores all may use all.
// Returns false if the processes of this node have to share cores, so that who waits should yield.
bool settle_on_node(const Launch& launch);

}  // namespace gptrain
