// Loading by ranks that hold the same parameters: one of them reads a slice that several need, and sends it to the
// others. So files are not read once for each data rank.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "checkpoint/transfers.h"
#include "comm/communicator.h"

namespace gptrain::inline checkpoint {

struct SharedLoad {
  int64_t read_bytes = 0;  // bytes of tensors that this rank read from files
  // Error(checkpoint) if this rank could not read or fill its slices, Error(diverged) if a number is not finite; null
  // if all went well. The rank takes part to the end all the same; after a fault the loaded values of all ranks are
  // invalid.
  std::exception_ptr fault;
};

// Carries out the transfers of every rank of `group` (null: there is one rank). Collective. REQUIRES: all transfers are
// of the same checkpoint. One of the ranks that need a slice reads it and checks its checksum, so that all read about
// equally much, and sends it to the others in pieces. A rank receives at most 16 MiB at a time, or 64 KiB from each of
// more than 256 ranks. THROWS Error(device) like every collective.
SharedLoad load_shared(const Contents& contents, std::vector<SliceTransfer> transfers, Communicator* group);

}  // namespace gptrain::checkpoint
