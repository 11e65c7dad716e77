// Replaces mpi_links.cpp in a build without MPI.
#include "base/error.h"
#include "comm/links.h"
#include "comm/process_world.h"

namespace gptrain::inline comm {

bool built_with_mpi() { return false; }

std::unique_ptr<MpiLinks> start_mpi(const Launch& launch, bool) {
  throw Error(
      ExitCode::machine,
      "{}: this gptrain was built without MPI: install libopenmpi-dev and build again, or set RANK, WORLD_SIZE, "
      "MASTER_ADDR and MASTER_PORT for each process instead of using mpirun",
      describe(launch));
}

}  // namespace gptrain::comm
