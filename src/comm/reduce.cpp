#include "comm/reduce.h"

#include <oneapi/dnnl/dnnl.h>

#include "comm/reduce_kernels.h"

namespace gptrain::inline comm {
namespace {

// Selects the instruction set as ops/cpu does: the one oneDNN uses, which the user may cap.
ReduceKernel select_kernel() {
#ifdef __x86_64__
  if ((dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2) return x86_64_v3::reduce_kernel;
#endif
  return baseline::reduce_kernel;
}

}  // namespace

void reduce(std::span<const void* const> inputs, void* out, int64_t count, DType dtype, ReduceOp op) {
  static const ReduceKernel kernel = select_kernel();
  kernel(inputs.data(), static_cast<int64_t>(inputs.size()), out, count, dtype, op);
}

}  // namespace gptrain::comm
