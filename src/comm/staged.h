// Collectives on memory of a device that are carried through the host, piece by piece.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "ops/side_queue.h"

namespace gptrain {

// Host memory that a rank takes to carry its collectives through, whatever they move, and shares out among its lanes:
// pieces are long enough that a copy costs more than its start.
constexpr int64_t staging_bytes = int64_t{8} << 20;

// The ranks of `host`, a group on the host's memory, on device memory: every piece is copied to `staging`, there the
// group works on it, and the result is copied back by way of `queue`. The bits are those that the group has for the
// whole. Groups of one rank that are used by one thread may share the staging memory, which has at least 16 bytes for
// every rank of the group and is equally large on all of them. Borrows everything. A call has finished when it
// returns. Transfers (of group_start and group_end, or a single one) go in rounds of one piece for each peer and
// direction: none ends before the first pieces of all have met.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, SideQueue& queue, DeviceMemory& staging);

}  // namespace gptrain
