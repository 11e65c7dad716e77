// Attention, forward, in patterns of one run of keys.
#include "kernels/attention_forward.h"

namespace gptrain::inline cuda {

void cuda_run(const AttentionForward& op, Stream stream, std::byte* scratch) { cuda_run(op, stream, scratch, nullptr); }

void cuda_run(const AttentionForward& op, Stream stream, std::byte* scratch, const int32_t* wanted) {
  if (!op.mask.pattern.one_run()) return run_pattern(op, stream, scratch);
  attention::run_forward<false>(op, stream, scratch, wanted);
}

}  // namespace gptrain::cuda
