#include "ops/cpu/kernels/kernels.h"

#define GPTRAIN_QUOTE_EXPANDED(text) #text
#define GPTRAIN_QUOTE(text) GPTRAIN_QUOTE_EXPANDED(text)

namespace gptrain::inline ops::GPTRAIN_ISA {

extern const KernelTable table;

// clang-format off
const KernelTable table{
    .name = GPTRAIN_QUOTE(GPTRAIN_ISA),
#define GPTRAIN_KERNEL(result, name, parameters) .name = name,
#include "ops/cpu/kernels/kernel_list.inc"
#undef GPTRAIN_KERNEL
#define GPTRAIN_UPDATE_ENTRY(Op) .update_##Op = update,
    GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_ENTRY)
#undef GPTRAIN_UPDATE_ENTRY
#define GPTRAIN_BLOCK_UPDATE_ENTRY(Op) .update_##Op = update_blocks,
    GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_BLOCK_UPDATE_ENTRY)
#undef GPTRAIN_BLOCK_UPDATE_ENTRY
#define GPTRAIN_TENSOR_NORMS_ENTRY(Op) .norms_##Op = tensor_norms,
    GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS_ENTRY)
#undef GPTRAIN_TENSOR_NORMS_ENTRY
};
// clang-format on

}  // namespace gptrain::ops::GPTRAIN_ISA
