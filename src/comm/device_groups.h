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

// Device memory that a rank takes for what its groups receive and reduce.
constexpr int64_t device_exchange_bytes = int64_t{32} << 20;

// The ranks of each of the groups that a rank is in, on memory of their devices, of which every rank has one of its
// own. Collective over the groups, in the order in which all their ranks have them.
// Calls come from the backend's thread, return when their work is queued on `queue`, and are awaited over its marks.
// What a rank waits for that will never come, as a peer is gone, ends with PeerGone or Error(device) where the rank
// waits for its ops; all these groups are then of no use. `scratch` is device memory of device_exchange_bytes. A group
// that is not made within timeout_seconds, or fails: Error(device). Borrows queue and scratch; the bits are those that
// Communicator promises.
std::vector<std::unique_ptr<Communicator>> make_linked_communicators(std::span<Communicator* const> hosts,
                                                                     SideQueue& queue, DeviceMemory& scratch,
                                                                     double timeout_seconds);

}  // namespace gptrain
