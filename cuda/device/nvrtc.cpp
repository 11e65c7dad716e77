// Defines the functions of nvrtc that cudnn-frontend calls.
#include <cuda_runtime_api.h>
#include <nvrtc.h>
#include <string>

#include "device/late_library.h"

namespace gptrain::inline cuda {
namespace {

const LateLibrary& nvrtc() {
  static const LateLibrary library("nvrtc", "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000));
  return library;
}

}  // namespace

void open_nvrtc() { nvrtc(); }

}  // namespace gptrain::cuda

extern "C" {

GPTRAIN_FORWARD(gptrain::cuda::nvrtc, nvrtcResult, nvrtcCreateProgram,
                (nvrtcProgram * program, const char* source, const char* name, int num_headers,
                 const char* const* headers, const char* const* include_names),
                (program, source, name, num_headers, headers, include_names))
GPTRAIN_FORWARD(gptrain::cuda::nvrtc, nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram * program), (program))
GPTRAIN_FORWARD(gptrain::cuda::nvrtc, nvrtcResult, nvrtcCompileProgram,
                (nvrtcProgram program, int num_options, const char* const* options), (program, num_options, options))
GPTRAIN_FORWARD(gptrain::cuda::nvrtc, nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram program, size_t* bytes),
                (program, bytes))
GPTRAIN_FORWARD(gptrain::cuda::nvrtc, nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram program, char* cubin), (program, cubin))
GPTRAIN_FORWARD(gptrain::cuda::nvrtc, nvrtcResult, nvrtcGetProgramLogSize, (nvrtcProgram program, size_t* bytes),
                (program, bytes))
GPTRAIN_FORWARD(gptrain::cuda::nvrtc, nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram program, char* log),
                (program, log))

}  // extern "C"
