// Launches of kernels for code that is compiled for devices: the kernel runs on the host harness when its stream
// (streams.h) comes to it.
#include "base/matrix.h"
#include "kernels/column_sums.h"
#include "kernels/product_check.h"
#include "kernels/rank_sum.h"
#include "kernels/run.h"
#include "kernels/tiled_product.h"
#include "streams.h"

namespace gptrain::inline cuda {

#define GPTRAIN_RUN_ON_STREAM(Op)                                        \
  void cuda_run(const Op& op, CUstream_st* stream, std::byte* scratch) { \
    stream->add([op, scratch] { cuda_run(op, Stream{}, scratch); });     \
  }
GPTRAIN_RUN_ON_STREAM(ActivationBackward)
GPTRAIN_RUN_ON_STREAM(ActivationForward)
GPTRAIN_RUN_ON_STREAM(Add)
GPTRAIN_RUN_ON_STREAM(Cast)
GPTRAIN_RUN_ON_STREAM(ColumnSums)
#undef GPTRAIN_RUN_ON_STREAM

void cuda_run(const Product& product, CUstream_st* stream) {
  stream->add([product] { cuda_run(product, Stream{}); });
}
void cuda_run(const RankSum& sum, CUstream_st* stream) {
  stream->add([sum] { cuda_run(sum, Stream{}); });
}

void start_result(const Matrix& result, bool accumulate, CUstream_st* stream) {
  stream->add([result, accumulate] { start_result(result, accumulate, Stream{}); });
}
// The next two tell how much they will write, which the host's versions know when they have run.
int64_t compare_tiles(const ExpectedProduct& expected, TileDistance* distances, CUstream_st* stream) {
  stream->wait_until_idle();
  return compare_tiles(expected, distances, Stream{});
}
int64_t take_fingerprint(const Matrix& result, Fingerprint* parts, CUstream_st* stream) {
  stream->wait_until_idle();
  return take_fingerprint(result, parts, Stream{});
}

}  // namespace gptrain::cuda
