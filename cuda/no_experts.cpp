// Ops of mixtures of experts, which have no kernels for GPUs yet. A config refuses such a model on a GPU; these
// functions refuse whatever reaches the backend otherwise.
#include <string_view>

#include "base/error.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

[[noreturn]] void refuse(std::string_view op) {
  throw Error(ExitCode::device, "{} has no kernel for GPUs yet: mixtures of experts run with run.device = \"cpu\"", op);
}

}  // namespace

#define GPTRAIN_REFUSE_ON_GPU(Op) \
  void cuda_run(const Op&, Stream, std::byte*) { refuse(Op::name); }
GPTRAIN_FOR_EACH_EXPERT_OP(GPTRAIN_REFUSE_ON_GPU)
#undef GPTRAIN_REFUSE_ON_GPU

}  // namespace gptrain::cuda
