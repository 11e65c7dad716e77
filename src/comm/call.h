// One operation of a group as a rank asks for it: what peers compare, and what messages name.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "comm/communicator.h"

namespace gptrain {

enum class Operation : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  barrier,
  send,
  receive
};

struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;  // of reductions
  int32_t peer = 0;             // root of a broadcast, other side of a send or receive
  int64_t count = 0;            // elements
};

std::string describe(const Call& call);  // "all_reduce(4 x f32, sum)"

// The first thing in which two calls of one collective differ; null if they agree.
const char* difference(const Call& a, const Call& b);
// The same for a send of one rank and the receive of another that it meets.
const char* transfer_difference(const Call& send, const Call& receive);

// Throws Error(device) if a group of `size` cannot do this.
void check_call(const Call& call, int size);

// The Error(device) for ranks whose calls differ in `what`.
Error disagreement(const char* what, int rank_a, const Call& a, int rank_b, const Call& b);

}  // namespace gptrain
