// Collectives directly between devices, by NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "ops/side_queue.h"

namespace gptrain::inline comm {

// Returns false in a build without NCCL; the functions below must then not be called.
bool has_device_links();

// Device memory of a rank for data that its groups receive and reduce, shared by its lanes: two halves of 32 MiB, one
// receiving while the other is reduced.
constexpr int64_t device_exchange_bytes = int64_t{64} << 20;

// A group of a lane on the host, and the resources of its device communicator. All borrowed.
struct LinkedGroup {
  Communicator* host = nullptr;     // used only to create the device group
  SideQueue* queue = nullptr;       // the lane's queue
  DeviceMemory* scratch = nullptr;  // the lane's device memory for reductions
  // True: the group has two ranks and only the first sends.
  bool one_way = false;
  bool in_pairs = false;       // ranks send to each other, in sums of much data and in all-to-all
  bool has_few_bytes = false;  // the group gets a single thread block
};

// Creates a device communicator for each group of this rank, and connects the ranks in the ways that the group will
// use: NCCL would otherwise take memory in the first collective, when a run has filled the device, and an early receive
// would block the host until the other rank sends. REQUIRES: every rank has a device of its own. Collective over the
// groups, in an order that is the same on all their ranks. The backend's thread makes all calls: it queues the work of
// all lanes in program order, and a call returns once its work is queued; the queue's marks tell when it is done. A
// group uses so few of the device's thread blocks that all lanes' groups can run at once: work that waits for a peer on
// one lane must not keep another lane from starting. If a peer is gone, the rank throws PeerGone or Error(device) where
// it waits for its ops, and all these communicators are unusable. THROWS Error(device) if a group cannot be made within
// timeout_seconds, Error(machine) if this build has no NCCL. Results have the bits that Communicator promises.
std::vector<std::unique_ptr<Communicator>> make_linked_communicators(std::span<const LinkedGroup> groups,
                                                                     double timeout_seconds);

}  // namespace gptrain::comm
