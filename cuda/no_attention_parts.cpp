// Ops of ranks that exchange keys and values, which have no kernels for GPUs yet. A config refuses such a run on a GPU;
// these functions refuse whatever reaches the backend otherwise.
#include <string_view>

#include "base/error.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

[[noreturn]] void refuse_part(std::string_view op) {
  throw Error(ExitCode::device, "{} has no kernel for GPUs yet: run with run.device = \"cpu\"", op);
}

}  // namespace

#define GPTRAIN_REFUSE_ON_GPU(Op) \
  void cuda_run(const Op&, Stream, std::byte*) { refuse_part(Op::name); }
GPTRAIN_FOR_EACH_PART_OP(GPTRAIN_REFUSE_ON_GPU)
#undef GPTRAIN_REFUSE_ON_GPU

}  // namespace gptrain::cuda
