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

// Device memory that a rank takes for what its groups receive and reduce, and shares out among its lanes: two halves of
// 32 MiB, one of which is received into while the other is reduced.
constexpr int64_t device_exchange_bytes = int64_t{64} << 20;

// A group of a lane, on the host, and what the same ranks' group on devices works with.
struct LinkedGroup {
  Communicator* host;     // only used to make the group
  SideQueue* queue;       // of the lane
  DeviceMemory* scratch;  // of the lane, device memory
  // The group has two ranks, and only the first one sends. They connect when the group is made. NCCL would otherwise
  // connect in the first transfer, where a receive that has begun early blocks the host until the other rank sends.
  bool one_way = false;
};

// Makes a device communicator for each group that a rank is in. Every rank has a device of its own. Collective over the
// groups, in an order that is the same on all their ranks.
// The backend's thread makes all calls. It queues the work of all lanes in the order of its program, and a call returns
// when its work is queued; the queue's marks tell when it is done. A group takes few enough of the device's blocks that
// the groups of all lanes run at once: work that waits for a peer on one lane must not keep another lane from beginning.
// If a peer is gone, the rank finds out where it waits for its ops: PeerGone or Error(device). All these communicators
// are of no use afterwards. Error(device), too, if a group cannot be made within timeout_seconds. Borrows queues and
// scratch. Results have the bits that Communicator promises.
std::vector<std::unique_ptr<Communicator>> make_linked_communicators(std::span<const LinkedGroup> groups,
                                                                     double timeout_seconds);

}  // namespace gptrain
