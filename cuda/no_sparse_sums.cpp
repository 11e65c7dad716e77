// Ops of sparse sums, which have no kernels for GPUs yet. A config refuses them on a GPU, and these functions refuse an
// op that reaches the backend all the same.
#include <string_view>

#include "base/error.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

[[noreturn]] void refuse(std::string_view op) {
  throw Error(ExitCode::machine, "{} has no kernel for GPUs yet: set run.device = \"cpu\"", op);
}

}  // namespace

#define GPTRAIN_REFUSE_ON_GPU(Op) \
  void cuda_run(const Op&, Stream, std::byte*) { refuse(Op::name); }
GPTRAIN_FOR_EACH_SPARSE_OP(GPTRAIN_REFUSE_ON_GPU)
#undef GPTRAIN_REFUSE_ON_GPU

}  // namespace gptrain::cuda
