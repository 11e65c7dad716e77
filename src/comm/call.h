// One operation on a group as a rank issues it. Peers compare it, and messages name it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/operation.h"

namespace gptrain::inline comm {

struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;  // for reductions
  int32_t peer = 0;             // root of a broadcast, peer of a send or receive
  int64_t count = 0;            // elements; for all_to_all_v, those between one pair of ranks
};

std::string describe(const Call& call);  // "all_reduce(4 x f32, sum)"

// Returns the first property in which two calls of one collective differ; null if they agree.
const char* difference(const Call& a, const Call& b);
// Returns the same for a send and the receive that it meets.
const char* transfer_difference(const Call& send, const Call& receive);

// Throws Error(device) if a group of `size` ranks cannot do `call`.
void check_call(const Call& call, int size);
// Throws likewise for an all_to_all_v of `rank`. A rank's part for itself must be sent and received with the same
// length.
void check_parts(std::span<const PeerPart> sent, std::span<const PeerPart> received, DType dtype, int rank, int size);

// Returns the Error(device) for two ranks whose calls differ in `what`.
Error disagreement(const char* what, int rank_a, const Call& a, int rank_b, const Call& b);

}  // namespace gptrain::comm
