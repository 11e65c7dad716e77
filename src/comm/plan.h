// The communicator of the `plan` backend: moves nothing and writes down what each call would have sent.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "comm/operation.h"

namespace gptrain {

// Calls of one operation and the bytes that one rank of the group sends in them, by algorithms that send no more than
// is needed (Thakur et al., IJHPCA 2005): n bytes of data and P ranks, an all-reduce sends 2 n (P - 1) / P, a
// reduce-scatter or all-gather of n bytes in all n (P - 1) / P; a broadcast n / P to each other rank, as a scatter and
// an all-gather, 2 n (P - 1) / P at most, and between two ranks n from its root. A transfer counts with its sender;
// barriers do not. Of a few KiB, where the number of messages counts, processes send all to all in one step:
// comm/exchange.h.
struct Traffic {
  int64_t calls = 0;
  int64_t sent_bytes = 0;  // an Amount: of what is too large, 2^63 - 1
};
using TrafficTable = std::array<Traffic, num_operations>;

// One rank of a group of `size`; `traffic` belongs to the caller and outlives it.
std::unique_ptr<Communicator> make_plan_communicator(int rank, int size, TrafficTable& traffic);

}  // namespace gptrain
