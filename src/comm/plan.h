// What collectives send, and the communicator of the `plan` backend, which moves nothing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/operation.h"

namespace gptrain {

// Calls of one operation and the bytes that one rank of the group sends in them.
struct Traffic {
  int64_t calls = 0;
  int64_t sent_bytes = 0;  // an Amount: of what is too large, 2^63 - 1
};
using TrafficTable = std::array<Traffic, num_operations>;

// The bytes that `rank` of a group of `size` sends in a call (all_to_all_v apart), by algorithms that send no more than
// is needed (Thakur et al., IJHPCA 2005): n bytes of data and P ranks, an all-reduce sends 2 n (P - 1) / P, a
// reduce-scatter or all-gather of n bytes in all n (P - 1) / P; a broadcast n / P to each other rank, as a scatter and
// an all-gather, 2 n (P - 1) / P at most, and between two ranks n from its root. A transfer counts with its sender;
// barriers do not. Of a few KiB, where the number of messages counts, processes send all to all in one step:
// comm/exchange.h.
int64_t sent_bytes(const Call& call, int rank, int size);
// The same of an all_to_all_v: what it sends to others.
int64_t sent_bytes(std::span<const PeerPart> sent, DType dtype, int rank);

// One rank of a group of `size`.
std::unique_ptr<Communicator> make_plan_communicator(int rank, int size);

}  // namespace gptrain
