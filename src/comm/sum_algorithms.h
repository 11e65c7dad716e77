// Sums over a group by messages between two ranks at a time: algorithms to compare, none of which a run uses. A run's
// sums are those of Communicator.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/enum_array.h"
#include "comm/communicator.h"

namespace gptrain::inline comm {

enum class SumAlgorithm : uint8_t {
  everyone,          // each rank sends all its data to all others, and adds up
  manager,           // all send their data to the first rank, which sends them the sum
  ring,              // pieces go round once to be added up, and once more as sums
  halving_doubling,  // pairs exchange halves, then quarters, and so on, and back
};
constexpr size_t num_sum_algorithms = 4;
constexpr EnumArray<SumAlgorithm, std::string_view, num_sum_algorithms> sum_algorithm_names = {
    "everyone", "manager", "ring", "halving-doubling"};

// The waits of a sum: messages one after the other, and the bytes that pass the busiest rank in one direction, in
// turn. With a latency and a rate of links, it takes messages * latency + bytes / rate.
struct SumCost {
  double messages = 0;
  double bytes = 0;
};

// Returns the cost of a sum of `bytes` bytes over `size` ranks. With n ranks and S bytes:
//   everyone          1 message,                              (n - 1) S bytes
//   manager           2 messages,                             2 (n - 1) S
//   ring              2 (n - 1),                              2 (n - 1)/n S
//   halving-doubling  2 log2 p with the largest p = 2^k <= n,  2 (p - 1)/p S; with p < n 2 messages and 2 S more
SumCost sum_cost(SumAlgorithm algorithm, int size, double bytes);

// Replaces `data` by its sum over the group. `scratch` has room for size * count elements, on the host. Collective.
// REQUIRES: `group` moves host memory.
void sum_by(SumAlgorithm algorithm, Communicator& group, float* data, int64_t count, float* scratch);

}  // namespace gptrain::comm
