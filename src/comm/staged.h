// Collectives on device memory that go through the host, piece by piece.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "ops/side_queue.h"

namespace gptrain::inline comm {

// Size of a rank's host memory through which its collectives pass in pieces; the lanes share it. A piece is so long
// that copying it takes longer than starting the copy.
constexpr int64_t staging_bytes = int64_t{8} << 20;

// Returns collectives on device memory by way of `host`, a group of the same ranks on host memory: each piece is copied
// to `staging`, the host group works on it there, and the result is copied back over `queue`. Results have the bits of
// the host group's result for the whole buffer. `staging` has at least 16 bytes per rank of the group and the same size
// on all ranks; a rank's groups may share it if one thread uses them. Borrows all arguments. A call has finished when
// it returns. Transfers, single or between group_start and group_end, run in rounds of one piece per peer and
// direction; none ends before the first pieces of all have met.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, SideQueue& queue, DeviceMemory& staging);

}  // namespace gptrain::comm
