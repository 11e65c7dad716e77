// The reduction of what ranks have sent one of them. Operands are device memory; nothing waits.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "comm/reduce_op.h"
#include "stream.h"

namespace gptrain {

// out[i] = reduction over ranks r, in their order, of `received`[r * count + i]; for r = rank of own[i] in its place.
// `out` may be `own`. As `reduce` of comm/reduce.h, to the bit, but for those of
// a NaN.
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

}  // namespace gptrain
