#include "kernels/activation_values.h"
#include "kernels/fp8_activation.h"
#include "kernels/fp8_copies.h"

namespace gptrain::inline cuda {

void run_to_fp8(const ActivationForward& op, Stream stream, std::byte* scratch) {
  with_values<bf16, pack_width>(op, [&](const auto& values) {
    launch_fp8_copies(values, op.x.rows, activated_cols(op.kind, op.x.cols), op.fp8, stream, scratch);
  });
}

void run_to_fp8(const ActivationBackward& op, Stream stream, std::byte* scratch) {
  with_values<bf16, pack_width>(
      op, [&](const auto& values) { launch_fp8_copies(values, op.dy.rows, op.dy.cols, op.fp8, stream, scratch); });
}

}  // namespace gptrain::cuda
