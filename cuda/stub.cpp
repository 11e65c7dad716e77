// Replaces the CUDA backend in a build without it.
#include "base/error.h"
#include "ops/backend.h"
#include "ops/cuda_devices.h"

namespace gptrain::inline ops {
namespace {

[[noreturn]] void throw_no_cuda() { throw Error(ExitCode::machine, "{}; or run on the CPU", why_no_cuda_device()); }

}  // namespace

int num_cuda_devices() { return 0; }

std::string why_no_cuda_device() { return "this build of gptrain has no CUDA: build it where nvcc is found"; }

Target cuda_target(int) { throw_no_cuda(); }

std::unique_ptr<Backend> make_cuda_backend(int, const std::string&) { throw_no_cuda(); }

}  // namespace gptrain::ops
