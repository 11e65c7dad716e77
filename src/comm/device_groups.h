// Collectives straight between devices: NCCL's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "ops/side_queue.h"

namespace gptrain {

// False in a build without NCCL, and then nothing below is called.
bool has_device_links();

// Device memory that a rank takes for what its groups receive and reduce, and shares out among its lanes.
constexpr int64_t device_exchange_bytes = int64_t{32} << 20;

// A group of a lane, on the host, and what the same ranks' group on devices works with.
struct LinkedGroup {
  Communicator* host;     // only used to make the group
  SideQueue* queue;       // of the lane
  DeviceMemory* scratch;  // of the lane, device memory
  // Of two ranks, the first of which sends. They connect when the group is made: a receive that is begun ahead of its
  // send would else keep the host until the other rank sends.
  bool one_way = false;
};

// The ranks of each of the groups that a rank is in, on memory of their devices, of which every rank has one of its
// own. Collective over the groups, in the order in which all their ranks have them.
// Calls come from the backend's thread, which queues the work of all lanes in one order, that of its program, and
// return when their work is queued. It is awaited over the queue's marks. No group takes so many blocks of the device
// that those of all lanes could not run at once: what waits for a peer on one lane would keep another from beginning.
// What a rank waits for that will never come, as a peer is gone, ends with PeerGone or Error(device) where the rank
// waits for its ops; all these groups are then of no use. A group that is not made within timeout_seconds, or fails:
// Error(device). Borrows queues and scratch; the bits are those that Communicator promises.
std::vector<std::unique_ptr<Communicator>> make_linked_communicators(std::span<const LinkedGroup> groups,
                                                                     double timeout_seconds);

}  // namespace gptrain
