// Attention, forward, in patterns of several runs of keys.
#include "kernels/attention_forward.h"

namespace gptrain::inline cuda {

void run_pattern(const AttentionForward& op, Stream stream, std::byte* scratch) {
  attention::run_forward<true>(op, stream, scratch, nullptr);
}

}  // namespace gptrain::cuda
