#include <oneapi/dnnl/dnnl.h>

#include "ops/cpu/kernels/matrix_kernels.h"

namespace gptrain {

extern const MatrixKernels matrix_kernels_baseline;
#ifdef __x86_64__
extern const MatrixKernels matrix_kernels_v3;
extern const MatrixKernels matrix_kernels_v4;
extern const MatrixKernels matrix_kernels_v4_bf16;
#endif

const MatrixKernels& select_matrix_kernels() {
#ifdef __x86_64__
  // What oneDNN would use: the CPU's own, capped by ONEDNN_MAX_CPU_ISA. Its values grow by adding bits.
  const int isa = dnnl_get_effective_cpu_isa();
  const auto has = [isa](int wanted) { return (isa & wanted) == wanted; };
  if (has(dnnl_cpu_isa_avx512_core_bf16)) return matrix_kernels_v4_bf16;
  if (has(dnnl_cpu_isa_avx512_core)) return matrix_kernels_v4;
  if (has(dnnl_cpu_isa_avx2)) return matrix_kernels_v3;
#endif
  return matrix_kernels_baseline;
}

}  // namespace gptrain
