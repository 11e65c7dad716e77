// One operation of a group as a rank asks for it: what peers compare, and what messages name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/operation.h"

namespace gptrain {

struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;  // of reductions
  int32_t peer = 0;             // root of a broadcast, other side of a send or receive
  int64_t count = 0;            // elements; of an all_to_all_v, those of one pair of ranks
};

std::string describe(const Call& call);  // "all_reduce(4 x f32, sum)"

// The first thing in which two calls of one collective differ; null if they agree.
const char* difference(const Call& a, const Call& b);
// The same for a send of one rank and the receive of another that it meets.
const char* transfer_difference(const Call& send, const Call& receive);

// Throws Error(device) if a group of `size` cannot do this.
void check_call(const Call& call, int size);
// The same for an all_to_all_v of `rank`, whose part for itself has one length, sent and received.
void check_parts(std::span<const PeerPart> sent, std::span<const PeerPart> received, DType dtype, int rank, int size);

// The Error(device) for ranks whose calls differ in `what`.
Error disagreement(const char* what, int rank_a, const Call& a, int rank_b, const Call& b);

}  // namespace gptrain
