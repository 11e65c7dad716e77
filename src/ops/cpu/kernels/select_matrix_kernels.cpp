#include <oneapi/dnnl/dnnl.h>
#ifdef __x86_64__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "ops/cpu/kernels/matrix_kernel_table.h"

namespace gptrain::inline ops {

extern const MatrixKernels matrix_kernels_baseline;
#ifdef __x86_64__
extern const MatrixKernels matrix_kernels_v3;
extern const MatrixKernels matrix_kernels_v4;
extern const MatrixKernels matrix_kernels_v4_bf16;
extern const MatrixKernels matrix_kernels_amx;
#endif

namespace {

const MatrixKernels* matrix_kernels_of_tests = nullptr;

#ifdef __x86_64__
// Asks Linux for permission to use tiles. RETURNS false if it refuses.
bool ask_for_tiles() {
  constexpr long arch_req_xcomp_perm = 0x1023, xtile_data = 18;  // ARCH_REQ_XCOMP_PERM of <asm/prctl.h>
  return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xtile_data) == 0;
}
#endif

}  // namespace

const MatrixKernels& select_matrix_kernels() {
  if (matrix_kernels_of_tests != nullptr) return *matrix_kernels_of_tests;
#ifdef __x86_64__
  // The instruction set that oneDNN uses: the CPU's, capped by ONEDNN_MAX_CPU_ISA. A larger set has all bits of a
  // smaller one.
  const int isa = dnnl_get_effective_cpu_isa();
  const auto has = [isa](int wanted) { return (isa & wanted) == wanted; };
  if (has(dnnl_cpu_isa_avx512_core_amx)) {
    static const bool tiles = ask_for_tiles();
    if (tiles) return matrix_kernels_amx;
  }
  if (has(dnnl_cpu_isa_avx512_core_bf16)) return matrix_kernels_v4_bf16;
  if (has(dnnl_cpu_isa_avx512_core)) return matrix_kernels_v4;
  if (has(dnnl_cpu_isa_avx2)) return matrix_kernels_v3;
#endif
  return matrix_kernels_baseline;
}

void use_matrix_kernels(const MatrixKernels* kernels) { matrix_kernels_of_tests = kernels; }

}  // namespace gptrain::ops
