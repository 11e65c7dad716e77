#include "ops/cpu/kernels/kernels.h"

#define GPTRAIN_QUOTE_EXPANDED(text) #text
#define GPTRAIN_QUOTE(text) GPTRAIN_QUOTE_EXPANDED(text)

namespace gptrain::GPTRAIN_ISA {

extern const KernelTable table;

const KernelTable table{
    .name = GPTRAIN_QUOTE(GPTRAIN_ISA),
    .embedding_forward = embedding_forward,
    .embedding_backward_tokens = embedding_backward_tokens,
    .embedding_backward_positions = embedding_backward_positions,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .residual_add = residual_add,
    .branch_backward = branch_backward,
    .query_key_forward = query_key_forward,
    .query_key_backward = query_key_backward,
    .activation_forward = activation_forward,
    .activation_backward = activation_backward,
    .encode_blocks = encode_blocks,
    .decode_blocks = decode_blocks,
    .projection_matrix = projection_matrix,
    .sample_rows = sample_rows,
    .cross_entropy_statistics = cross_entropy_statistics,
    .cross_entropy = cross_entropy,
    .sum_of_squares = sum_of_squares,
    .keep_gradients = keep_gradients,
    .add_squares = add_squares,
    .divide_by_roots = divide_by_roots,
#define GPTRAIN_UPDATE_ENTRY(Op) .update_##Op = update,
    GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_ENTRY)
#undef GPTRAIN_UPDATE_ENTRY
#define GPTRAIN_BLOCK_UPDATE_ENTRY(Op) .update_##Op = update_blocks,
    GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_BLOCK_UPDATE_ENTRY)
#undef GPTRAIN_BLOCK_UPDATE_ENTRY
#define GPTRAIN_TENSOR_NORMS_ENTRY(Op) .norms_##Op = tensor_norms,
    GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS_ENTRY)
#undef GPTRAIN_TENSOR_NORMS_ENTRY
    .add_partials = add_partials,
    .cast = cast,
    .weighted_sum = weighted_sum,
    .add = add,
};

}  // namespace gptrain::GPTRAIN_ISA
