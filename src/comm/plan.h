// Bytes that collectives send, and the communicator of the `plan` backend, which moves nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/enum_array.h"
#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/operation.h"

namespace gptrain::inline comm {

// Number of calls of one operation and the bytes that one rank sends in them.
struct Traffic {
  int64_t calls = 0;
  int64_t sent_bytes = 0;  // saturates at 2^63 - 1 (see Amount)
};
using TrafficTable = EnumArray<Operation, Traffic, num_operations>;

// Returns the bytes that `rank` of a group of `size` sends in a call (not all_to_all_v), for algorithms that send no
// more than needed (Thakur et al., IJHPCA 2005). For n bytes and P ranks: all_reduce 2 n (P - 1) / P; reduce_scatter,
// all_gather and all_to_all of n bytes in total n (P - 1) / P; broadcast, a scatter and an all-gather, 2 n (P - 1) / P
// at the root and half of that at the others, between two ranks n at the root. A transfer counts at its sender; a
// barrier sends nothing. The real transport sends more for a few KiB, where the number of messages counts: see
// comm/exchange.h.
int64_t sent_bytes(const Call& call, int rank, int size);
// Returns the bytes that `rank` sends to others in an all_to_all_v.
int64_t sent_bytes(std::span<const PeerPart> sent, DType dtype, int rank);

// Returns the communicator of one rank in a group of `size`.
std::unique_ptr<Communicator> make_plan_communicator(int rank, int size);

}  // namespace gptrain::comm
