// Replaces NCCL in a build without it and on the host harness.
#include "base/error.h"
#include "comm/device_groups.h"

namespace gptrain::inline comm {

bool has_device_links() { return false; }

std::vector<std::unique_ptr<Communicator>> make_linked_communicators(std::span<const LinkedGroup>, double) {
  throw Error(ExitCode::machine, "this build of gptrain has no NCCL");
}

}  // namespace gptrain::comm
