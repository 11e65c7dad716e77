// What takes the CUDA backend's place in a build without it.
#include "base/error.h"
#include "ops/backend.h"

namespace gptrain {
namespace {

[[noreturn]] void throw_no_cuda() {
  throw Error(ExitCode::device, "this build of gptrain has no CUDA: build it where nvcc is found, or run on the CPU");
}

}  // namespace

int num_cuda_devices() { return 0; }

Target cuda_target(int) { throw_no_cuda(); }

std::unique_ptr<Backend> make_cuda_backend(int, const std::string&) { throw_no_cuda(); }

}  // namespace gptrain
