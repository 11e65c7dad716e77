#include "matrix_kernels_choice.h"

#include "ops/cpu/kernels/matrix_kernel_table.h"
#ifdef __x86_64__
#include "amx_emulator.h"
#endif

namespace gptrain::inline ops {

extern const MatrixKernels matrix_kernels_substituted;
#ifdef __x86_64__
extern const MatrixKernels matrix_kernels_amx;
#endif

}  // namespace gptrain::ops

namespace gptrain::ops_test {

bool choose_matrix_kernels(std::string_view name) {
#ifdef __x86_64__
  if (name == "amx") {
    const MatrixKernels* const of_machine = &select_matrix_kernels();
    if (of_machine != &matrix_kernels_amx) {
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
