// Reduction of the data that other ranks have sent. Operands are device memory; nothing waits.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "comm/reduce_op.h"
#include "stream.h"

namespace gptrain::inline cuda {

// out[i] = reduction over ranks r, in order, of received[r * count + i], with own[i] for this rank. `out` may be `own`.
// Has the bits of `reduce` (comm/reduce.h), except for the payload of a NaN.
struct RankSum {
  const void* own;
  const void* received;
  int rank, size;
  void* out;
  int64_t count;
  DType dtype;
  ReduceOp op;
};
void cuda_run(const RankSum& sum, Stream stream);

}  // namespace gptrain::cuda
