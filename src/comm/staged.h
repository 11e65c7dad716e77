// Collectives on memory of a device that are carried through the host, piece by piece.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "ops/side_queue.h"

namespace gptrain {

// Host memory of a rank that collectives of any size pass through in pieces; its lanes share it. Pieces are so long that
// a copy takes longer than starting it.
constexpr int64_t staging_bytes = int64_t{8} << 20;

// Collectives on device memory by way of `host`, a group of the same ranks on host memory. Each piece is copied to
// `staging`, the host group works on it there, and the result is copied back over `queue`. The bits are those of the
// host group's result for the whole buffer. Groups of one rank may share the staging memory if one thread uses them. It
// has at least 16 bytes for every rank of the group and the same size on all ranks. Borrows everything. A call has
// finished when it returns. Transfers, single ones or those of group_start and group_end, go in rounds of one piece for
// each peer and direction; none ends before the first pieces of all have met.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, SideQueue& queue, DeviceMemory& staging);

}  // namespace gptrain
