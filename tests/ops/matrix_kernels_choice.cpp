#include "matrix_kernels_choice.h"

#include "ops/cpu/kernels/matrix_kernel_table.h"
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "amx_emulator.h"
#endif

namespace gptrain::inline ops {

extern const MatrixKernels matrix_kernels_substituted;
#ifdef __x86_64__
extern const MatrixKernels matrix_kernels_amx;
#endif

}  // namespace gptrain::ops

namespace gptrain::ops_test {
#ifdef __x86_64__
namespace {

// Returns whether the CPU has tiles and Linux permits them, whatever ONEDNN_MAX_CPU_ISA says. Then some of their
// instructions run without permission, and cannot be emulated.
bool has_tiles() {
  constexpr long arch_req_xcomp_perm = 0x1023, xtile_data = 18;  // ARCH_REQ_XCOMP_PERM of <asm/prctl.h>
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx = bit_AMX_BF16 | bit_AMX_TILE;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & amx) == amx &&
         syscall(SYS_arch_prctl, arch_req_xcomp_perm, xtile_data) == 0;
}

}  // namespace
#endif

bool choose_matrix_kernels(std::string_view name) {
#ifdef __x86_64__
  if (name == "amx") {
    if (!has_tiles()) {
      if (!__builtin_cpu_supports("avx512bf16")) return false;
      emulate_amx();
    }
    use_matrix_kernels(&matrix_kernels_amx);
    return true;
  }
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
#endif
  if (name != "substituted") return false;
  use_matrix_kernels(&matrix_kernels_substituted);
  return true;
}

}  // namespace gptrain::ops_test
