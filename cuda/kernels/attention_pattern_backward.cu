// Attention, backward, in patterns of several runs of keys.
#include "kernels/attention_backward.h"

namespace gptrain::inline cuda {

void run_pattern(const AttentionBackward& op, Stream stream, std::byte* scratch) {
  attention::run_backward<true>(op, stream, scratch, nullptr);
}

}  // namespace gptrain::cuda
