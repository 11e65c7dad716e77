// Launches of kernels for code that is compiled for devices: the kernel runs on the host harness when its stream
// (streams.h) comes to it.
#include "base/matrix.h"
#include "kernels/rank_sum.h"
#include "streams.h"

namespace gptrain::inline cuda {

void cuda_run(const RankSum& sum, CUstream_st* stream) {
  stream->add([=] { cuda_run(sum, Stream{}); });
}

}  // namespace gptrain::cuda
