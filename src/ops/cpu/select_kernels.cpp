#include <oneapi/dnnl/dnnl.h>

#include "ops/cpu/kernels/kernel_table.h"

namespace gptrain::inline ops {

#define GPTRAIN_DECLARE_TABLE(isa) \
  namespace isa {                  \
  extern const KernelTable table;  \
  }
GPTRAIN_KERNEL_ISAS(GPTRAIN_DECLARE_TABLE)
#undef GPTRAIN_DECLARE_TABLE

const KernelTable& select_kernels() {
#ifdef __x86_64__
  // The instruction set that oneDNN uses: the CPU's, capped by ONEDNN_MAX_CPU_ISA. A larger set has all bits of a
  // smaller one.
  const int isa = dnnl_get_effective_cpu_isa();
  const auto has = [isa](int wanted) { return (isa & wanted) == wanted; };
  if (has(dnnl_cpu_isa_avx512_core)) return x86_64_v4::table;
  if (has(dnnl_cpu_isa_avx2)) return x86_64_v3::table;
#endif
  return baseline::table;
}

}  // namespace gptrain::ops
